"""A TLS context from the files that a web configuration names."""

import ssl

from lockstep_agent.web.config import TlsConfig

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a server.

    Raises:
        ValueError: one sentence on the file that is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.maximum_version = _VERSIONS[config.max_version]
    context.set_alpn_protocols(["http/1.1"])
    for path in config.files:
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ValueError(_sentence(config, error)) from error
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except ssl.SSLError as error:
            raise ValueError(
                f"client_ca_file {config.client_ca_file} holds no certificate"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED if config.is_client_required else ssl.CERT_OPTIONAL
    return context


def _no_password() -> str:
    """Keys with a password are refused: OpenSSL would ask for it on a terminal."""
    return ""


def _sentence(config: TlsConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"cert_file {config.cert_file} does not match key_file {config.key_file}; "
            "give the key that the certificate was made for"
        )
    return (
        f"cert_file {config.cert_file} and key_file {config.key_file} are not a certificate and "
        f"key in PEM without a password ({error.reason or 'not to be read'})"
    )
