package httpapi

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// A server proves which cluster it serves. This is needed because a tailnet name can move to
// another machine, and a certificate proves only the name. A client sends a nonce. The response,
// including a refusal, carries the cluster's signature over the nonce, the Host of the request and
// the response body. The Host is signed so that an impostor cannot forward responses of the real
// server: the real server rejects names that are not its own.
const (
	NonceHeader = "Tailplane-Nonce" // 16 to 64 bytes, base64url without padding
	ProofHeader = "Tailplane-Proof" // Ed25519 signature, base64url without padding
)

const proofForm = "tailplane-proof-v1"

// NewNonce returns a new nonce for NonceHeader.
func NewNonce() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func checkNonce(nonce string) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(nonce)
	if err != nil || strings.ContainsAny(nonce, "\r\n") || len(b) < 16 || len(b) > 64 {
		return fmt.Errorf("%s is not 16 to 64 bytes in base64url without padding", NonceHeader)
	}
	return nil
}

// signedMessage returns the signed message. Only its last part can contain a zero byte, so two different
// responses never have the same message.
func signedMessage(nonce, host string, body []byte) []byte {
	sum := sha256.Sum256(body)
	return append([]byte(proofForm+"\x00"+nonce+"\x00"+host+"\x00"), sum[:]...)
}

// A Key is the cluster's private key. It cannot be printed. The zero Key must not be used to sign.
type Key struct {
	public PublicKey
	// This is a function, because fmt does not call methods on unexported fields and would print
	// the bytes behind a pointer.
	sign func(message []byte) []byte
}

// NewKey returns the key for a seed of 32 bytes.
func NewKey(seed []byte) (Key, error) {
	if len(seed) != ed25519.SeedSize {
		return Key{}, fmt.Errorf("the seed of a cluster key has %d bytes, not %d", ed25519.SeedSize, len(seed))
	}
	private := ed25519.NewKeyFromSeed(seed)
	return Key{
		public: PublicKey(private.Public().(ed25519.PublicKey)),
		sign:   func(message []byte) []byte { return ed25519.Sign(private, message) },
	}, nil
}

// Public returns the public key, or the zero PublicKey for the zero Key.
func (k Key) Public() PublicKey { return k.public }

// Prove returns the value of ProofHeader for the response to nonce.
func (k Key) Prove(nonce, host string, body []byte) string {
	return base64.RawURLEncoding.EncodeToString(k.sign(signedMessage(nonce, host, body)))
}

// Sign signs a message. The message must begin with the name of its format and a zero byte, so that
// a signature for one format is never valid for another.
func (k Key) Sign(message []byte) []byte { return k.sign(message) }

const redacted = "[key]"

// Format hides the key from every verb of fmt.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue hides the key from logs.
func (k Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the key from every encoder.
func (k Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// A PublicKey identifies a cluster. Its text is "ed25519:" and the key in base64url without
// padding. The zero PublicKey means no key.
type PublicKey [ed25519.PublicKeySize]byte

const publicPrefix = "ed25519:"

// ParsePublicKey parses the text of a PublicKey.
func ParsePublicKey(s string) (PublicKey, error) {
	var p PublicKey
	text, ok := strings.CutPrefix(s, publicPrefix)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || strings.ContainsAny(s, "\r\n") || len(b) != len(p) {
		return p, fmt.Errorf("%.80q is not a cluster key of the form %q and 43 characters", s, publicPrefix)
	}
	copy(p[:], b)
	if p.IsZero() {
		return p, errors.New("the cluster key is all zeros")
	}
	return p, nil
}

// IsZero reports whether p is the zero PublicKey.
func (p PublicKey) IsZero() bool { return p == PublicKey{} }

// String returns the text of p, or "" for the zero PublicKey.
func (p PublicKey) String() string {
	if p.IsZero() {
		return ""
	}
	return publicPrefix + base64.RawURLEncoding.EncodeToString(p[:])
}

// MarshalText implements [encoding.TextMarshaler].
func (p PublicKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. Empty text gives the zero PublicKey.
func (p *PublicKey) UnmarshalText(text []byte) (err error) {
	*p = PublicKey{}
	if len(text) > 0 {
		*p, err = ParsePublicKey(string(text))
	}
	return err
}

// Errors of Check.
var (
	ErrNoProof  = errors.New("the server did not prove that it serves the cluster")
	ErrBadProof = errors.New("the server's proof is not signed with this cluster's key")
)

// Check verifies proof, the ProofHeader of a response, with this key. It returns ErrNoProof if
// proof is empty and ErrBadProof if it does not match. host must be the Host of the request, byte
// for byte, and body the response body as received.
func (p PublicKey) Check(nonce, host string, body []byte, proof string) error {
	if proof == "" {
		return ErrNoProof
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(proof)
	if err != nil || p.IsZero() || !ed25519.Verify(p[:], signedMessage(nonce, host, body), sig) {
		return ErrBadProof
	}
	return nil
}
