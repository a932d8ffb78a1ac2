"""Certificates and keys for a trial of a federation: a CA, a certificate for the SuperLink, a key for every node.

For a trial: whoever has the folder has all of it. In earnest the certificate comes from your CA, and every node makes
its own key and tells you the public one.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lasg.errors import LasgError, wrap_write_errors
from lasg.runs.files import make_folder, write_new

DAYS = 90
CA = "lasg trial CA"
PrivateKey = ec.EllipticCurvePrivateKey


def create(folder: Path | str, hosts: Sequence[str], nodes: Sequence[str]) -> list[Path]:
    """Write ca.crt, server.pem and server.key for these host names, and a pair of keys per node; return the files."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise LasgError(f"{folder} is there already, and not empty: keys are never overwritten")
    names = ["ca.crt", "server.pem", "server.key", *(f"{name}{end}" for name in nodes for end in (".key", ".pub"))]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise LasgError(f"two keys would be {twice[0]}: give every node a name of its own, and none server's or ca's")
    with wrap_write_errors(folder):
        make_folder(folder)
        folder.chmod(0o700)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    files = {
        "ca.crt": _sign(CA, authority, authority).public_bytes(pem),
        "server.pem": _sign(hosts[0], server, authority, hosts).public_bytes(pem),
        "server.key": server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    }
    for name in nodes:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        files[f"{name}.key"] = key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain)
        files[f"{name}.pub"] = public + b"\n"
    # What is secret can be read by its owner alone from its first byte on.
    secret = {name: 0o600 if name.endswith(".key") else 0o644 for name in files}
    return write_new(folder, {name: (content, secret[name]) for name, content in files.items()})


def _sign(subject: str, key: PrivateKey, by: PrivateKey, hosts: Sequence[str] | None = None) -> x509.Certificate:
    """Return a certificate of a server with these host names; without any, of the authority itself."""
    subject_name, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, CA))
    now, ca = dt.datetime.now(dt.UTC), hosts is None
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": not ca, "key_cert_sign": ca, "crl_sign": ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject_name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    if hosts is not None:
        names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(by, hashes.SHA256())


def _alternative(host: str) -> x509.GeneralName:
    """Return a host's name or address, as a certificate has it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
