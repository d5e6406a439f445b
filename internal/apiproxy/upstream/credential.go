package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// secret is a token. Printing it shows a placeholder.
type secret string

// String implements [fmt.Stringer].
func (secret) String() string { return "(token)" }

// GoString implements [fmt.GoStringer].
func (secret) GoString() string { return "(token)" }

// LogValue implements [slog.LogValuer].
func (secret) LogValue() slog.Value { return slog.StringValue("(token)") }

// credential is a snapshot of the cluster's credential files, with the connections that use it. It is
// immutable.
type credential struct {
	files          []file // the files it was read from
	token          secret
	identity       [3][]byte // CA, certificate and key, on which connections depend
	plain, upgrade *http.Transport
}

// file is a file as it was found.
type file struct {
	path string
	info os.FileInfo
}

// same reports whether the files have not changed since c was read.
func (c *credential) same() bool {
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
func (c *Cluster) credential() (*credential, error) {
	if cred := c.sealed.Load(); cred != nil && cred.same() {
		return cred, nil
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	old := c.sealed.Load()
	if old != nil && old.same() {
		return old, nil
	}
	return c.load(old)
}

// again reads the files after the cluster has refused used. changed reports whether they hold another
// credential.
func (c *Cluster) again(used *credential) (_ *credential, changed bool) {
	c.loading.Lock()
	defer c.loading.Unlock()
	cred, err := c.load(c.sealed.Load())
	if err != nil {
		c.Log.Warn("credential cannot be read again", "cluster", c.Name, "err", err)
		return used, false
	}
	return cred, cred.token != used.token || cred.plain != used.plain
}

// load reads the files. The caller must hold c.loading.
func (c *Cluster) load(old *credential) (*credential, error) {
	cred := &credential{}
	read := func(path string) ([]byte, error) {
		info, err := os.Stat(path) // before reading, so that the next check detects a change in between
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(path)
		cred.files = append(cred.files, file{path, info})
		return b, err
	}
	var err error
	if c.Folder != "" {
		err = c.readSecret(cred, read)
	} else {
		err = c.readFiles(cred, read)
	}
	if err != nil {
		return nil, err
	}
	if old != nil && bytes.Equal(old.identity[0], cred.identity[0]) && bytes.Equal(old.identity[1], cred.identity[1]) && bytes.Equal(old.identity[2], cred.identity[2]) {
		cred.plain, cred.upgrade = old.plain, old.upgrade
	} else if err := c.connections(cred); err != nil {
		return nil, err
	}
	c.sealed.Store(cred)
	if old != nil && old.plain != cred.plain {
		c.Log.Info("connections are made anew", "cluster", c.Name)
		// Connections in use close after their requests and 90 idle seconds.
		old.plain.CloseIdleConnections()
		old.upgrade.CloseIdleConnections()
	}
	return cred, nil
}

// readFiles reads the credential from separate files.
func (c *Cluster) readFiles(cred *credential, read func(path string) ([]byte, error)) (err error) {
	if cred.identity[0], err = read(c.CAFile); err != nil {
		return fmt.Errorf("authority of cluster %s: %w", c.Name, err)
	}
	if c.TokenFile != "" {
		b, err := read(c.TokenFile)
		if err == nil {
			cred.token, err = tokenOf(b)
		}
		if err == nil && c.Vet != nil {
			err = c.Vet([]byte(cred.token))
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

// maxFile is the largest file of a Secret in bytes; a whole Secret has at most 1 MiB.
const maxFile = 1 << 20

// ReadFolder reads the files of a mounted Secret by name. Names that begin with two dots belong to the
// kubelet.
func ReadFolder(folder string) (map[string][]byte, error) {
	return readFolder(folder, os.ReadFile)
}

func readFolder(folder string, read func(path string) ([]byte, error)) (map[string][]byte, error) {
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
		} else if !info.Mode().IsRegular() || info.Size() > maxFile {
			return nil, fmt.Errorf("%s is no file of a Secret", path)
		}
		if files[e.Name()], err = read(path); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// readSecret reads the credential from a mounted Secret. The folder changes when the kubelet writes another
// version.
func (c *Cluster) readSecret(cred *credential, read func(path string) ([]byte, error)) error {
	failed := func(err error) error { return fmt.Errorf("credential for cluster %s: %w", c.Name, err) }
	info, err := os.Stat(c.Folder)
	if err != nil {
		return failed(err)
	}
	cred.files = append(cred.files, file{c.Folder, info})
	files, err := readFolder(c.Folder, read)
	if err != nil {
		return failed(err)
	}
	m, err := c.Read(files)
	if err != nil {
		return failed(err)
	}
	if len(m.Cert) == 0 {
		if cred.token, err = tokenOf(m.Token); err != nil {
			return failed(err)
		}
	}
	cred.identity = [3][]byte{m.CA, m.Cert, m.Key}
	return nil
}

// tokenOf reads a token as client-go does. It refuses anything but a single line of printable characters.
func tokenOf(b []byte) (secret, error) {
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errors.New("the file is empty")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", errors.New("the file holds something else than a token")
	}
	return secret(token), nil
}

// connections creates the two transports.
func (c *Cluster) connections(cred *credential) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cred.identity[0]) {
		return fmt.Errorf("authority of cluster %s: %s holds no certificate", c.Name, cmp.Or(c.CAFile, c.Folder))
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: c.ServerName, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	if len(cred.identity[1]) > 0 {
		pair, err := tls.X509KeyPair(cred.identity[1], cred.identity[2])
		if err != nil {
			return fmt.Errorf("certificate for cluster %s: it cannot be read, or its key is another's", c.Name)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second, ControlContext: c.reaches}
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
	cred.plain.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: streamBuffer, MaxReadFrameSize: frameSize}
	cred.upgrade.Protocols.SetHTTP1(true)
	cred.upgrade.DisableKeepAlives = true
	return nil
}

// streamBuffer is how many bytes of a response may arrive before they are read. Merged lists wait for their
// turn, and with the default of net/http each would hold 4 MiB.
const streamBuffer = 1 << 20

// frameSize is the maximal frame size that the adapter advertises. Larger frames than the default of 16 KiB
// in net/http make long responses cheaper, at the cost of memory per connection.
const frameSize = 64 << 10

// reaches checks each address before it is dialled, because a name may now resolve to another address than
// when it was validated.
func (c *Cluster) reaches(_ context.Context, _, address string, _ syscall.RawConn) error {
	if c.Reaches == nil {
		return nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return c.Reaches(at.Addr())
}

// Check reads the credential and returns its errors, without a request to the cluster.
func (c *Cluster) Check() error {
	_, err := c.credential()
	return err
}

// Close closes idle connections.
func (c *Cluster) Close() {
	if cred := c.sealed.Load(); cred != nil {
		cred.plain.CloseIdleConnections()
		cred.upgrade.CloseIdleConnections()
	}
}
