"""The one suite that every mailbox backend passes (GATE-31)."""

from tests.suites.test_mailbox_reads import MailboxReads
from tests.suites.test_mailbox_retention import MailboxRetention
from tests.suites.test_mailbox_writes import MailboxWrites

__all__ = ["MailboxSuite"]


class MailboxSuite(MailboxReads, MailboxWrites, MailboxRetention):
    """Inherit it in a test module that provides the fixture `harness`."""
