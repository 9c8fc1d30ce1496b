"""How a process's connections are protected, out of its settings: made once and shared by all of them."""

from ..config.security import SecuritySettings
from .mechanisms import sasl_rules
from .sockets import Security
from .tls import TlsContexts, tls_rules


def security_for(settings: SecuritySettings) -> Security:
    """TLS contexts and SASL rules, as far as `security.protocol` asks for them. Nothing is read and nobody asked yet."""
    return Security(TlsContexts(tls_rules(settings)) if settings.uses_tls else None, sasl_rules(settings))
