"""The Faust graph: agents over topics, and the transport that feeds them pages (ARCH-06)."""
