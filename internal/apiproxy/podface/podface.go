// Package podface is what a pod sees of its adapter: an authority of the pod's
// own, a certificate for the loopback address, a token that opens nothing else,
// and the files in which an application looks for all three. It keeps law 8: the
// authority's key and the token are values that cannot be printed, and the key
// never lies where an application can read it.
//
// The order at a start is load or make ([Open]), bind the listener, show the
// files ([Face.Show]), be ready: an application that finds the files finds the
// listener too.
package podface

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// stateFile holds authority, key and token as one: they are made together and
// are replaced together, so no crash leaves a half of them.
const stateFile = "identity.pem"

// The blocks of the state file, in their order.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	tokenBlock       = "MCA LOCAL TOKEN"
)

// tokenBytes is the length of the local token before it is encoded.
const tokenBytes = 32

// A Face is what the pod sees. It may be used by several goroutines.
type Face struct {
	now       func() time.Time
	authority *x509.Certificate
	key       *ecdsa.PrivateKey
	token     Token
	sum       [sha256.Size]byte // of the token

	mu   sync.Mutex
	leaf *tls.Certificate
}

// A Token is the local token: it opens the adapter of this pod and nothing else.
// It cannot be printed by accident.
type Token string

// String implements [fmt.Stringer].
func (Token) String() string { return "(local token)" }

// GoString implements [fmt.GoStringer].
func (Token) GoString() string { return "(local token)" }

// LogValue implements [slog.LogValuer].
func (Token) LogValue() slog.Value { return slog.StringValue("(local token)") }

// Open returns the face that lies in dir, or makes one there. A face survives a
// restart of the container, so that clients that have read its files once go on.
// A state that cannot be read is an error and is never replaced: running clients
// would trust it no more.
func Open(dir string, now func() time.Time) (*Face, error) {
	path := filepath.Join(dir, stateFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = create(now()); err == nil {
			err = write(dir, stateFile, b, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the adapter's own authority: %w", err)
	}
	f, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("the adapter's own authority in %s: %w", path, err)
	}
	f.now = now
	return f, nil
}

// create returns a new state.
func create(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority(key, now)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	token := make([]byte, tokenBytes)
	rand.Read(token)
	return slices.Concat(
		pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: ca}),
		pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: tokenBlock, Bytes: token}),
	), nil
}

// parse reads a state. It takes nothing but what create has written.
func parse(b []byte) (*Face, error) {
	blocks := map[string][]byte{}
	for len(b) > 0 {
		block, rest := pem.Decode(b)
		if block == nil {
			return nil, errors.New("not PEM")
		}
		if blocks[block.Type] != nil {
			return nil, fmt.Errorf("two blocks %q", block.Type)
		}
		blocks[block.Type], b = block.Bytes, rest
	}
	ca, err := x509.ParseCertificate(blocks[certificateBlock])
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(blocks[keyBlock])
	if err != nil {
		return nil, errors.New("the key cannot be read") // the cause may hold bytes of it
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, errors.New("key and certificate do not belong together")
	}
	if len(blocks[tokenBlock]) != tokenBytes {
		return nil, errors.New("no token of the right length")
	}
	token := Token(base64.RawURLEncoding.EncodeToString(blocks[tokenBlock]))
	return &Face{authority: ca, key: key, token: token, sum: sha256.Sum256([]byte(token))}, nil
}

// Opens reports whether presented is the local token. How long it takes says
// nothing about how much of it is right.
func (f *Face) Opens(presented string) bool {
	sum := sha256.Sum256([]byte(presented))
	return subtle.ConstantTimeCompare(sum[:], f.sum[:]) == 1
}

// Authority returns the authority's certificate as PEM, as ca.crt has it.
func (f *Face) Authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: f.authority.Raw})
}

// Show writes into dir what the pod's applications look for: namespace, ca.crt
// and, last, token. Each appears whole or not at all; one that stands there
// already is not touched, so nobody who follows it reads it again.
func (f *Face) Show(dir, namespace string) error {
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"namespace", []byte(namespace)},
		{"ca.crt", f.Authority()},
		{"token", []byte(f.token)},
	} {
		if old, err := os.ReadFile(filepath.Join(dir, file.name)); err == nil && string(old) == string(file.content) {
			continue
		}
		if err := write(dir, file.name, file.content, 0o644); err != nil {
			return fmt.Errorf("what the pod sees: %w", err)
		}
	}
	return nil
}

// write makes or replaces a file as one step.
func write(dir, name string, content []byte, mode fs.FileMode) (err error) {
	t, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(t.Name())
		}
	}()
	_, err = t.Write(content)
	if err = cmp.Or(err, t.Chmod(mode), t.Sync()); err != nil {
		t.Close()
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return os.Rename(t.Name(), filepath.Join(dir, name))
}

// Names returns what the adapter is reached by, without ports: the names and
// addresses in its certificate, and the only ones in a Host header.
func Names() []string {
	return append(slices.Clone(dnsNames), strings.Split(ipAddresses, " ")...)
}
