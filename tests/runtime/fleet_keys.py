"""Keys of a fleet for tests, as docs/guide/fleet.md makes them with openssl and ssh-keygen; by what Flower brings."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path


def server_keys(folder: Path, address: str = "127.0.0.1") -> tuple[Path, Path, Path]:
    """Certificate and key of a server with that address, and the certificate of whoever signed it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    folder.mkdir(parents=True)
    ours, its = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    signer, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("our fleet", "server"))
    now = datetime.now(timezone.utc)

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool) -> bytes:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        made = x509.CertificateBuilder(signer, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(authority, None), critical=True)
        made = made if authority else made.add_extension(names, critical=False)
        return made.sign(ours, hashes.SHA384()).public_bytes(Encoding.PEM)

    files = folder / "server.pem", folder / "server.key", folder / "ca.pem"
    files[0].write_bytes(signed(name, its, False))
    files[1].write_bytes(its.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files[2].write_bytes(signed(signer, ours, True))
    return files


def device_key(path: Path) -> Path:
    """The private key of a device; the public one is beside it, in a file of the same name and .pub."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    path.with_name(f"{path.name}.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    return path
