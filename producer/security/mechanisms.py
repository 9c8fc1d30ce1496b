"""Creates SASL mechanisms from the settings. Connections create a new one each time they authenticate."""

import random
from collections.abc import Callable

from ...config.security import SecuritySettings
from ..protocol.backoff import Backoff
from .gssapi import GssapiMechanism, KerberosIdentity
from .oauthbearer import OAuthBearerMechanism, TokenEndpoint, TokenFile, TokenProvider, TokenRefreshTiming
from .sasl import Mechanism, SaslRules
from .scram import Credentials, PlainMechanism, ScramMechanism
from .secret import SecretText
from .token_endpoint import TokenEndpointConfig
from .tokens import RefreshWindow

__all__ = ["mechanism_for", "sasl_rules", "token_provider"]


def sasl_rules(settings: SecuritySettings) -> SaslRules | None:
    """How a process's connections authenticate; None without SASL. The settings must have been validated."""
    if not settings.uses_sasl:
        return None
    assert settings.sasl_mechanism is not None, "security.protocol = SASL_… needs sasl.mechanism"
    return SaslRules(settings.sasl_mechanism, mechanism_for(settings))


def mechanism_for(settings: SecuritySettings) -> Callable[[str], Mechanism]:
    """A factory that creates a mechanism for one authentication with a host. The factory or the mechanism raises
    AuthenticationError if a secret's file is unusable."""
    match settings.sasl_mechanism:
        case "OAUTHBEARER":
            given = token_provider(settings)
            extensions = settings.token_extensions
            return lambda host: OAuthBearerMechanism(given, extensions)  # noqa: ARG005
        case "GSSAPI":
            identity = KerberosIdentity(
                settings.sasl_kerberos_service_name, settings.sasl_kerberos_keytab, settings.sasl_kerberos_principal
            )
            return lambda host: GssapiMechanism(identity, host)
        case name:
            assert name is not None, "a mechanism is wanted"
            assert settings.sasl_password_file is not None, f"{name} needs sasl.password.file"
            return _by_password(name, settings.sasl_username, SecretText(settings.sasl_password_file))


def _by_password(name: str, user: str, password: SecretText) -> Callable[[str], Mechanism]:
    def plain(_host: str) -> Mechanism:
        return PlainMechanism(Credentials(user, password.current()))

    def scram(_host: str) -> Mechanism:
        return ScramMechanism(name, Credentials(user, password.current()))

    return plain if name == "PLAIN" else scram


def token_provider(settings: SecuritySettings) -> TokenProvider:
    """The source of OAUTHBEARER tokens: a file or an endpoint."""
    if settings.token_file is not None:
        return TokenFile(settings.token_file)
    assert settings.sasl_oauthbearer_client_secret_file is not None, "OAUTHBEARER needs a secret for its endpoint"
    endpoint = TokenEndpointConfig(
        settings.sasl_oauthbearer_token_endpoint_url,
        settings.sasl_oauthbearer_client_id,
        settings.sasl_oauthbearer_scope,
        settings.sasl_oauthbearer_truststore_location,
        settings.sasl_oauthbearer_header_urlencode,
        settings.sasl_login_connect_timeout_ms / 1000,
        settings.sasl_login_read_timeout_ms / 1000,
    )
    window = RefreshWindow(
        settings.sasl_login_refresh_window_factor,
        settings.sasl_login_refresh_window_jitter,
        settings.sasl_login_refresh_min_period_seconds,
        settings.sasl_login_refresh_buffer_seconds,
    )
    retry = Backoff(settings.sasl_login_retry_backoff_ms / 1000, settings.sasl_login_retry_backoff_max_ms / 1000)
    return TokenEndpoint(
        endpoint, settings.sasl_oauthbearer_client_secret_file, TokenRefreshTiming(window, retry), random.random
    )
