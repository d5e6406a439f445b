package door

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

// A server proves which cluster it serves: a name of the tailnet can move to
// another machine, and a certificate proves only the name. Whoever asks sends a
// nonce, and the answer, a refusal too, carries the cluster's signature over the
// nonce, the Host of the request and the body of the answer. Host is signed so
// that an impostor cannot pass on what the real server answers: the real one
// refuses a name that is not its own.
const (
	NonceHeader = "Tailplane-Nonce" // 16 to 64 bytes, base64url without padding
	ProofHeader = "Tailplane-Proof" // Ed25519 signature, base64url without padding
)

const proofForm = "tailplane-proof-v1"

// NewNonce returns a fresh nonce as NonceHeader carries it.
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

// proven is what is signed. None of its parts but the last can hold a zero byte,
// so no two answers have one form.
func proven(nonce, host string, body []byte) []byte {
	sum := sha256.Sum256(body)
	return append([]byte(proofForm+"\x00"+nonce+"\x00"+host+"\x00"), sum[:]...)
}

// A Key is the cluster's private key. It cannot be printed. The zero Key signs
// nothing.
type Key struct {
	public PublicKey
	// A function, as fmt asks no methods of an unexported field of another
	// struct, and follows a pointer to bytes.
	sign func(message []byte) []byte
}

// NewKey returns the key of a seed of 32 bytes.
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

// Public returns the half that everybody may know; the zero PublicKey for the zero Key.
func (k Key) Public() PublicKey { return k.public }

// Prove returns what ProofHeader carries in the answer to nonce.
func (k Key) Prove(nonce, host string, body []byte) string {
	return base64.RawURLEncoding.EncodeToString(k.sign(proven(nonce, host, body)))
}

// Sign signs a message that begins with the name of its form and a zero byte, so
// that no signature is one of another form.
func (k Key) Sign(message []byte) []byte { return k.sign(message) }

const hiddenKey = "[key]"

// Format hides the key from every verb of fmt.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, hiddenKey) }

// LogValue hides the key from logs.
func (k Key) LogValue() slog.Value { return slog.StringValue(hiddenKey) }

// MarshalText hides the key from every encoder.
func (k Key) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

// A PublicKey is what a cluster is known by. Its text form is "ed25519:" and the
// key in base64url without padding. The zero PublicKey is none.
type PublicKey [ed25519.PublicKeySize]byte

const publicPrefix = "ed25519:"

// ParsePublicKey reads the text form.
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

// IsZero reports whether there is no key.
func (p PublicKey) IsZero() bool { return p == PublicKey{} }

// String returns the text form, "" for no key.
func (p PublicKey) String() string {
	if p.IsZero() {
		return ""
	}
	return publicPrefix + base64.RawURLEncoding.EncodeToString(p[:])
}

// MarshalText implements [encoding.TextMarshaler].
func (p PublicKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. No text is no key.
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
	ErrBadProof = errors.New("the server's proof is not of this cluster's key")
)

// Check returns an error unless proof, the ProofHeader of an answer, is by this
// key: ErrNoProof when there is none, ErrBadProof when it does not fit. The host
// is the Host that the request was sent with, byte for byte; the body is the
// answer's as it came.
func (p PublicKey) Check(nonce, host string, body []byte, proof string) error {
	if proof == "" {
		return ErrNoProof
	}
	sig, err := base64.RawURLEncoding.Strict().DecodeString(proof)
	if err != nil || p.IsZero() || !ed25519.Verify(p[:], proven(nonce, host, body), sig) {
		return ErrBadProof
	}
	return nil
}
