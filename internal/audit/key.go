package audit

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// A Key signs an audit log. It cannot be printed (law 8).
type Key struct {
	// This is a pointer because fmt does not call methods on unexported fields. Printing such a
	// field then shows an address and not the key.
	private *ed25519.PrivateKey
}

// NewKey returns private as a Key.
func NewKey(private ed25519.PrivateKey) (Key, error) {
	if len(private) != ed25519.PrivateKeySize {
		return Key{}, fmt.Errorf("an Ed25519 key has %d bytes, not %d", ed25519.PrivateKeySize, len(private))
	}
	return Key{&private}, nil
}

// KeyFromSeed derives a Key from a seed of 32 bytes.
func KeyFromSeed(seed []byte) (Key, error) {
	if len(seed) != ed25519.SeedSize {
		return Key{}, fmt.Errorf("the seed of an Ed25519 key has %d bytes, not %d", ed25519.SeedSize, len(seed))
	}
	return Key{new(ed25519.NewKeyFromSeed(seed))}, nil
}

// GenerateKey returns a new random Key.
func GenerateKey() Key {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails
	return Key{new(ed25519.NewKeyFromSeed(seed))}
}

// LoadKey reads a PKCS #8 PEM key from the file at path. If the file does not exist, LoadKey
// generates a key and stores it there with mode 0600.
func LoadKey(path string) (Key, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		k := GenerateKey()
		if err := k.save(path); !errors.Is(err, fs.ErrExist) {
			return k, err
		}
		b, err = os.ReadFile(path) // another process created it first
	}
	if err != nil {
		return Key{}, fmt.Errorf("audit key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return Key{}, fmt.Errorf("audit key: %s has no PEM block of type PRIVATE KEY", path)
	}
	// Do not wrap the parser's error: it could quote the key.
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return Key{}, fmt.Errorf("audit key: the key in %s is not an Ed25519 key", path)
	}
	return NewKey(private)
}

// save writes k to a new file. The file must not exist. It is never partly written.
func (k Key) save(path string) (err error) {
	der, err := x509.MarshalPKCS8PrivateKey(*k.private)
	if err != nil {
		return fmt.Errorf("audit key: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".audit-key-*") // 0600
	if err != nil {
		return fmt.Errorf("audit key: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), path) // unlike a rename, it replaces nothing
	}
	if err != nil {
		return fmt.Errorf("audit key: store a new one: %w", err)
	}
	return nil
}

// IsZero reports whether k holds no key.
func (k Key) IsZero() bool { return k.private == nil }

// Public returns the public key of k, or the zero PublicKey if k is zero.
func (k Key) Public() (p PublicKey) {
	if !k.IsZero() {
		copy(p[:], (*k.private)[ed25519.SeedSize:])
	}
	return p
}

// signingContext separates these signatures from any other signature that the same key makes.
const signingContext = "tailplane-audit-v1\x00"

func (k Key) sign(text []byte) []byte {
	return ed25519.Sign(*k.private, append([]byte(signingContext), text...))
}

// String returns "[redacted]".
func (k Key) String() string { return redacted }

// GoString returns "[redacted]".
func (k Key) GoString() string { return redacted }

// LogValue implements [slog.LogValuer]: "[redacted]".
func (k Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler]: "[redacted]".
func (k Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// A PublicKey verifies an audit log. Its text is "ed25519:" and unpadded base64url.
type PublicKey [ed25519.PublicKeySize]byte

const keyPrefix = "ed25519:"

// ParsePublicKey parses the text of a PublicKey.
func ParsePublicKey(s string) (p PublicKey, err error) {
	text, ok := strings.CutPrefix(s, keyPrefix)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != len(p) {
		return PublicKey{}, fmt.Errorf("%.80q is not a public key of an audit log: such a key is %q and 43 characters", s, keyPrefix)
	}
	return PublicKey(b), nil
}

// String returns the text of p.
func (p PublicKey) String() string { return keyPrefix + base64.RawURLEncoding.EncodeToString(p[:]) }

// MarshalText implements [encoding.TextMarshaler].
func (p PublicKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *PublicKey) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePublicKey(string(b))
	return err
}

// ID returns a short ID of p: the first 16 hexadecimal digits of its SHA-256.
func (p PublicKey) ID() string {
	sum := sha256.Sum256(p[:])
	return hex.EncodeToString(sum[:8])
}

func (p PublicKey) verify(text, sig []byte) bool {
	return ed25519.Verify(p[:], append([]byte(signingContext), text...), sig)
}
