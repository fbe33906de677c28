"""What tests share: real servers and the watch on what a test leaves behind."""
