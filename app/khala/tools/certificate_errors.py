"""Says what is wrong with the certificate of a server, if that is why a connection failed."""

import ssl


def certificate_problem(error: BaseException) -> str | None:
    """The problem in words, as "certificate has expired"; None if the connection failed for another reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        cause = cause.__cause__ or cause.__context__
    return None
