"""From a failure to its cause: a batch, a table, or neither.

A new reason has its words in ``refusal_words`` and its SQLSTATEs in ``_FAILURES`` of ``rejections``. One for a batch
that is given up after it failed alone is also in ``GIVEN_UP`` of ``evidence``, and in the alert and the runbook
AnabranchBatchFailedInternally.
"""
