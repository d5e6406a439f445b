package apiproxy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// credential is a snapshot of the cluster's credential files, with the connections that use it. It is
// immutable.
type credential struct {
	files          []fileState // the files it was read from
	token          secret.Text
	identity       [3][]byte // CA, certificate and key, on which connections depend
	plain, upgrade *http.Transport
}

// fileState is a file as it was found.
type fileState struct {
	path string
	info os.FileInfo
}

// unchanged reports whether the files have not changed since c was read.
func (c *credential) unchanged() bool {
	for _, f := range c.files {
		now, err := os.Stat(f.path)
		if err != nil || !os.SameFile(now, f.info) || !now.ModTime().Equal(f.info.ModTime()) || now.Size() != f.info.Size() {
			return false
		}
	}
	return true
}

// credential returns the current content of the files. It checks them for each request, which costs
// microseconds. A new token is thus used at once, and a removed one is never used: an old credential is never
// a fallback.
func (c *Upstream) credential() (*credential, error) {
	if cred := c.current.Load(); cred != nil && cred.unchanged() {
		return cred, nil
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	old := c.current.Load()
	if old != nil && old.unchanged() {
		return old, nil
	}
	return c.loadCredential(old)
}

// reloadCredential reads the files after the cluster has refused used. changed reports whether they hold another
// credential.
func (c *Upstream) reloadCredential(used *credential) (_ *credential, changed bool) {
	c.loading.Lock()
	defer c.loading.Unlock()
	cred, err := c.loadCredential(c.current.Load())
	if err != nil {
		c.Log.Warn("the credential cannot be read again", "cluster", c.Name, "err", err)
		return used, false
	}
	return cred, !cred.token.Equal(used.token) || cred.plain != used.plain
}

// loadCredential reads the files. The caller must hold c.loading.
func (c *Upstream) loadCredential(old *credential) (*credential, error) {
	cred := &credential{}
	read := func(path string) ([]byte, error) {
		info, err := os.Stat(path) // before reading, so that the next check detects a change in between
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(path)
		cred.files = append(cred.files, fileState{path, info})
		return b, err
	}
	var err error
	if c.SecretDir != "" {
		err = c.readSecret(cred, read)
	} else {
		err = c.readFiles(cred, read)
	}
	if err != nil {
		return nil, err
	}
	if old != nil && bytes.Equal(old.identity[0], cred.identity[0]) && bytes.Equal(old.identity[1], cred.identity[1]) &&
		bytes.Equal(old.identity[2], cred.identity[2]) {
		cred.plain, cred.upgrade = old.plain, old.upgrade
	} else if err := c.makeTransports(cred); err != nil {
		return nil, err
	}
	c.current.Store(cred)
	if old != nil && old.plain != cred.plain {
		c.Log.Info("the credential changed; opening new connections", "cluster", c.Name)
		// Connections in use close after their requests and 90 idle seconds.
		old.plain.CloseIdleConnections()
		old.upgrade.CloseIdleConnections()
	}
	return cred, nil
}

// readFiles reads the credential from separate files.
func (c *Upstream) readFiles(cred *credential, read func(path string) ([]byte, error)) (err error) {
	if cred.identity[0], err = read(c.CAFile); err != nil {
		return fmt.Errorf("authority of cluster %s: %w", c.Name, err)
	}
	if c.TokenFile != "" {
		b, err := read(c.TokenFile)
		if err == nil {
			cred.token, err = parseToken(string(b))
		}
		if err == nil && c.CheckToken != nil {
			err = c.CheckToken(cred.token)
		}
		if err != nil {
			return fmt.Errorf("token for cluster %s: %w", c.Name, err)
		}
		return nil
	}
	for i, path := range []string{c.CertFile, c.KeyFile} {
		if cred.identity[i+1], err = read(path); err != nil {
			return fmt.Errorf("certificate for cluster %s: %w", c.Name, err)
		}
	}
	return nil
}

// maxSecretFile is the largest file of a Secret in bytes; a whole Secret has at most 1 MiB.
const maxSecretFile = 1 << 20

// ReadSecretDir reads the files of a mounted Secret by name. Names that begin with two dots belong to the
// kubelet.
func ReadSecretDir(folder string) (map[string][]byte, error) {
	return readSecretDir(folder, os.ReadFile)
}

func readSecretDir(folder string, read func(path string) ([]byte, error)) (map[string][]byte, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(folder, e.Name())
		if info, err := os.Stat(path); err != nil {
			return nil, err
		} else if !info.Mode().IsRegular() || info.Size() > maxSecretFile {
			return nil, fmt.Errorf("%s is not a file of a Secret", path)
		}
		if files[e.Name()], err = read(path); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// readSecret reads the credential from a mounted Secret. The directory changes when the kubelet writes another
// version.
func (c *Upstream) readSecret(cred *credential, read func(path string) ([]byte, error)) error {
	failed := func(err error) error { return fmt.Errorf("credential for cluster %s: %w", c.Name, err) }
	info, err := os.Stat(c.SecretDir)
	if err != nil {
		return failed(err)
	}
	cred.files = append(cred.files, fileState{c.SecretDir, info})
	files, err := readSecretDir(c.SecretDir, read)
	if err != nil {
		return failed(err)
	}
	m, err := c.ParseSecret(files)
	if err != nil {
		return failed(err)
	}
	if len(m.Cert) == 0 {
		if cred.token, err = parseToken(m.Token.Reveal()); err != nil {
			return failed(err)
		}
	}
	cred.identity = [3][]byte{m.CA, m.Cert, []byte(m.Key.Reveal())}
	return nil
}

// parseToken reads a token as client-go does. It refuses anything but a single line of printable characters.
func parseToken(text string) (secret.Text, error) {
	token := strings.TrimSpace(text)
	if token == "" {
		return secret.Text{}, errors.New("the file is empty")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return secret.Text{}, errors.New("the file contains data that is not a token")
	}
	return secret.New(token), nil
}

// makeTransports creates the two transports.
func (c *Upstream) makeTransports(cred *credential) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cred.identity[0]) {
		return fmt.Errorf("authority of cluster %s: %s has no certificate", c.Name, cmp.Or(c.CAFile, c.SecretDir))
	}
	conf := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            pool,
		ServerName:         c.ServerName,
		ClientSessionCache: tls.NewLRUClientSessionCache(8),
	}
	if len(cred.identity[1]) > 0 {
		pair, err := tls.X509KeyPair(cred.identity[1], cred.identity[2])
		if err != nil {
			return fmt.Errorf("certificate for cluster %s: it cannot be read, or it does not match its key", c.Name)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second, ControlContext: c.checkDialAddress}
	dial := dialer.DialContext
	if c.Dial != nil {
		dial = c.Dial(dial)
	}
	base := func() *http.Transport {
		return &http.Transport{
			// Proxy is nil, so that no environment variable can redirect a token.
			DialContext: dial, TLSClientConfig: conf.Clone(), TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression: true, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 32, MaxResponseHeaderBytes: 1 << 20, Protocols: new(http.Protocols),
		}
	}
	cred.plain, cred.upgrade = base(), base()
	cred.plain.Protocols.SetHTTP1(true)
	cred.plain.Protocols.SetHTTP2(true)
	cred.plain.HTTP2 = &http.HTTP2Config{
		SendPingTimeout:           30 * time.Second,
		PingTimeout:               15 * time.Second,
		MaxReceiveBufferPerStream: streamBuffer,
		MaxReadFrameSize:          maxFrameSize,
	}
	cred.upgrade.Protocols.SetHTTP1(true)
	cred.upgrade.DisableKeepAlives = true
	return nil
}

// streamBuffer is how many bytes of a response may arrive before they are read. Merged lists wait for their
// turn, and with the default of net/http each would hold 4 MiB.
const streamBuffer = 1 << 20

// maxFrameSize is the maximal frame size that the adapter advertises. Larger frames than the default of 16 KiB
// in net/http make long responses cheaper, at the cost of memory per connection.
const maxFrameSize = 64 << 10

// checkDialAddress checks each address before it is dialled, because a name may now resolve to another address than
// when it was validated.
func (c *Upstream) checkDialAddress(_ context.Context, _, address string, _ syscall.RawConn) error {
	if c.CheckAddress == nil {
		return nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return c.CheckAddress(at.Addr())
}

// CheckCredential reads the credential and returns its errors, without a request to the cluster.
func (c *Upstream) CheckCredential() error {
	_, err := c.credential()
	return err
}

// Close closes idle connections.
func (c *Upstream) Close() {
	if cred := c.current.Load(); cred != nil {
		cred.plain.CloseIdleConnections()
		cred.upgrade.CloseIdleConnections()
	}
}
