"""A TLS authority, and certificates for 127.0.0.1 that this authority has signed."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
HOST = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Authority:
    """Signs certificates. `path` is the file of the authority's certificate, for `ssl_ca_certs`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self._issued = 0
        own = self._signed(self._name, self._key, DAY).add_extension(x509.BasicConstraints(True, None), True)
        self.path = folder / "authority.pem"
        self.path.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def context(self, valid: timedelta = DAY, *, of_clients: bool = False) -> ssl.SSLContext:
        """Return a context that presents a new certificate for 127.0.0.1.

        Args:
            valid: how long the certificate is valid from now on. If negative, it has already expired.
            of_clients: whether clients also have to present a certificate of this authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate(valid))
        if of_clients:
            context.load_verify_locations(self.path)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def certificate(self, valid: timedelta = DAY) -> Path:
        """Return a file with a new certificate for 127.0.0.1 and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._signed(_name("redis"), key, valid)
        builder = builder.add_extension(x509.SubjectAlternativeName([HOST]), critical=False)
        self._issued += 1
        path = self._folder / f"{self._issued}.pem"
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        )
        return path

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return x509.CertificateBuilder(
            self._name, name, key.public_key(), x509.random_serial_number(), now - 2 * DAY, now + valid
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
