"""When S3 refuses a request, the error text contains advice that fits the refusal."""

from __future__ import annotations

import pytest

from storage_core.store.s3_failures import Failure, Trouble


@pytest.mark.parametrize(
    ("detail", "advice"),
    [
        ("400 ExpiredToken", "Renew the credentials"),
        ("403 RequestTimeTooSkewed", "Correct the clock of this machine"),
        ("403 SignatureDoesNotMatch", "Check the credentials in the environment"),
        ("403 AccessDenied", "Without s3:ListBucket, S3 also gives this answer for objects that do not exist"),
        ("403", "Without s3:ListBucket, S3 also gives this answer for objects that do not exist"),
    ],
)
def test_the_advice_about_a_refusal_fits_the_error_of_s3(detail: str, advice: str) -> None:
    message = str(Failure(Trouble.ACCESS, detail).error("s3://b/t", "k"))
    assert message.startswith(f"k in s3://b/t: access denied ({detail}). ")
    assert message.endswith(f". {advice}")
