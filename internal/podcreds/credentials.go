// Package podcreds manages the credentials that the adapter gives its pod. They are a CA of this pod, a
// certificate for the loopback address, a token that is valid only for the adapter, and the files in which
// applications look for them. It keeps law 8: the CA key and the token are values that cannot be printed, and
// applications cannot read the key.
//
// A start must have this order: load or create the state ([Open]), bind the listener, write the files
// ([Credentials.WriteFiles]), become ready. An application that finds the files then also finds the listener.
package podcreds

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// stateFile holds the CA, its key and the token in one file. They are created and replaced together, so that
// a crash cannot leave only a part.
const stateFile = "identity.pem"

// The PEM blocks of the state file, in order.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
	tokenBlock       = "MCA LOCAL TOKEN"
)

// tokenBytes is the length of the local token before encoding.
const tokenBytes = 32

// Credentials holds the credentials of the pod. It is safe for concurrent use.
type Credentials struct {
	now   func() time.Time
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey
	token secret.Text // the local token, which is valid only for the adapter of this pod

	mu   sync.Mutex
	leaf *tls.Certificate
}

// Open loads the credentials from dir, or creates them there. They survive a restart of the container, so
// that clients that have read the files continue to work. An unreadable state is an error and is never
// replaced, because running clients would no longer trust the adapter.
func Open(dir string, now func() time.Time) (*Credentials, error) {
	path := filepath.Join(dir, stateFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = newState(now()); err == nil {
			err = writeFile(dir, stateFile, b, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the adapter's certificate authority: %w", err)
	}
	f, err := parseState(b)
	if err != nil {
		return nil, fmt.Errorf("the adapter's certificate authority in %s: %w", path, err)
	}
	f.now = now
	return f, nil
}

// newState returns a new state.
func newState(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := newCA(key, now)
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

// parseState reads a state. It accepts only the output of create.
func parseState(b []byte) (*Credentials, error) {
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
		return nil, errors.New("the key cannot be read") // the cause could contain bytes of the key
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, errors.New("key and certificate do not match")
	}
	if len(blocks[tokenBlock]) != tokenBytes {
		return nil, errors.New("the token is missing or has a wrong length")
	}
	return &Credentials{ca: ca, key: key, token: secret.New(base64.RawURLEncoding.EncodeToString(blocks[tokenBlock]))}, nil
}

// ValidToken reports whether presented is the local token. It takes constant time, so its duration reveals nothing
// about the token.
func (f *Credentials) ValidToken(presented string) bool {
	return f.token.Equal(secret.New(presented))
}

// CACertificate returns the CA certificate in PEM, the content of ca.crt.
func (f *Credentials) CACertificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: f.ca.Raw})
}

// WriteFiles writes the files that the pod's applications look for into dir: namespace, ca.crt and, last, token. It
// writes each atomically. It does not touch a file that is already correct, so that clients that watch it do
// not reload it.
func (f *Credentials) WriteFiles(dir, namespace string) error {
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{"namespace", []byte(namespace)},
		{"ca.crt", f.CACertificate()},
		{"token", []byte(f.token.Reveal())},
	} {
		if old, err := os.ReadFile(filepath.Join(dir, file.name)); err == nil && string(old) == string(file.content) {
			continue
		}
		if err := writeFile(dir, file.name, file.content, 0o644); err != nil {
			return fmt.Errorf("the files for the pod: %w", err)
		}
	}
	return nil
}

// writeFile creates or replaces a file atomically.
func writeFile(dir, name string, content []byte, mode fs.FileMode) (err error) {
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

// Hosts returns the names and addresses of the adapter, without ports. They are in its certificate, and are
// the only valid ones in a Host header.
func Hosts() []string {
	return append(slices.Clone(dnsNames), strings.Split(ipAddresses, " ")...)
}
