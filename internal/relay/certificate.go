package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Timing of the certificate lifecycle.
const (
	issueTimeout             = 5 * time.Minute // limit for issuing a certificate; a CA may be slow
	certificateCheckInterval = 2 * time.Second // while there is none: another relay may issue it
	renewalPause             = time.Hour       // while there is a certificate
	duePause                 = time.Minute     // while there is a certificate that is due for renewal
	firstFailure             = time.Minute     // after the first failure at the CA; times ten after the second, and times ten again after the third
)

// maxReason is the maximum length of a reported failure.
const maxReason = 300

// ErrNotYet is wrapped by the error of IssueCertificate if the tailnet does not allow this node to
// get a certificate for the name at the moment. No CA was contacted.
var ErrNotYet = errors.New("the tailnet does not issue a certificate with that name to this node yet")

// certificates manage the certificates of the names for which the relay terminates TLS. Each
// certificate is in a Secret that all relays of a group read. One of the relays issues and renews
// it.
//
//	missing --issued--> in the Secret --a third of its lifetime is left--> issued again
type certificates struct {
	r *Relay

	mu      sync.Mutex
	names   map[string]bool // name -> whether this relay issues the certificate if it is missing
	known   map[string]*certificate
	changed signal // the names changed
}

// A certificate is the state of the certificate of one name.
type certificate struct {
	pair   *keyPair // nil if there is none
	reason string   // reason why there is none, or why it could not be stored or renewed
}

// A keyPair is a certificate with its key, parsed and as PEM from the Secret.
type keyPair struct {
	tls.Certificate
	chain, key []byte
}

// setNames sets the names that need certificates.
func (c *certificates) setNames(names map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = names
	c.changed.send()
}

// get returns the certificate of a name, or the reason why there is none.
func (c *certificates) get(name string) (*keyPair, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k := c.known[name]; {
	case k == nil:
		return nil, "it was not requested yet"
	case k.pair != nil && !c.r.Now().Before(k.pair.Leaf.NotAfter):
		return nil, "it has expired: " + k.reason
	default:
		return k.pair, k.reason
	}
}

// set stores the state of a name and wakes the relay if the status changes.
func (c *certificates) set(name string, k certificate) {
	k.reason = k.reason[:min(len(k.reason), maxReason)] // the text is stored in a Secret
	c.mu.Lock()
	was := c.known[name]
	if c.known == nil {
		c.known = map[string]*certificate{}
	}
	c.known[name] = &k
	c.mu.Unlock()
	if was == nil || was.reason != k.reason || (was.pair == nil) != (k.pair == nil) {
		if k.reason != "" {
			c.r.Log.Warn("a certificate is not available", "name", name, "valid", k.pair != nil, "why", k.reason)
		}
		c.r.Wake()
	}
}

// run manages the wanted certificates until ctx ends.
func (c *certificates) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	type life struct {
		issue bool
		end   context.CancelFunc
	}
	lives := map[string]life{}
	for {
		c.mu.Lock()
		desired := c.names
		for name, l := range lives {
			if issue, is := desired[name]; !is || issue != l.issue {
				l.end()
				delete(lives, name)
			}
			if _, is := desired[name]; !is {
				delete(c.known, name)
			}
		}
		c.mu.Unlock()
		for name, issue := range desired {
			if _, is := lives[name]; is {
				continue
			}
			living, end := context.WithCancel(ctx)
			lives[name] = life{issue, end}
			wg.Go(func() { defer end(); c.manage(living, name, issue) })
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed.channel():
		}
	}
}

// manage manages the certificate of one name.
func (c *certificates) manage(ctx context.Context, name string, issue bool) {
	failures := 0
	for {
		k, wait := c.reconcile(ctx, name, issue, &failures)
		if ctx.Err() != nil {
			return
		}
		c.set(name, k)
		if retry.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// reconcile reads the Secret and, if this relay is responsible, issues a certificate. It returns the
// best available certificate and the time until the next reconcile.
func (c *certificates) reconcile(ctx context.Context, name string, issue bool, failures *int) (certificate, time.Duration) {
	now := c.r.Now()
	current, _ := c.get(name)
	chain, key, err := c.r.ReadCertificate(ctx, name)
	if err != nil { // an unreadable Secret must not be overwritten
		return certificate{current, "its Secret cannot be read: " + err.Error()}, certificateCheckInterval
	}
	stored, reason := certificateFor(name, chain, key, now)
	best := longerValid(stored, current)
	if best != nil && !renewalDue(best, now) {
		if issue && best != stored { // the Secret was recreated
			err = c.write(ctx, name, best)
		}
		if err != nil {
			return certificate{best, err.Error()}, certificateCheckInterval
		}
		return certificate{pair: best}, renewalPause
	}
	wait := certificateCheckInterval
	if best != nil {
		wait, reason = duePause, ""
	}
	if !issue || c.r.IssueCertificate == nil {
		return certificate{best, reason}, wait
	}
	fresh, err := c.issue(ctx, name, now)
	switch {
	case errors.Is(err, ErrNotYet):
		return certificate{best, ErrNotYet.Error()}, wait
	case err != nil:
		wait = firstFailure
		for range min(*failures, 2) {
			wait *= 10
		}
		*failures++
		return certificate{best, "it is not available: " + err.Error()}, wait
	}
	*failures = 0
	if best = longerValid(best, fresh); best == fresh {
		if err := c.write(ctx, name, best); err != nil {
			return certificate{best, err.Error()}, certificateCheckInterval
		}
		c.r.Log.Info("a certificate was issued", "name", name, "until", best.Leaf.NotAfter)
	}
	return certificate{pair: best}, renewalPause
}

// issue requests a new certificate and validates it.
func (c *certificates) issue(ctx context.Context, name string, now time.Time) (*keyPair, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	chain, key, err := c.r.IssueCertificate(ctx, name)
	if err != nil {
		return nil, err
	}
	fresh, reason := certificateFor(name, chain, key, now)
	if fresh == nil {
		return nil, errors.New("the issued certificate is not valid: " + reason)
	}
	return fresh, nil
}

// write stores a certificate in the Secret, for the other relays.
func (c *certificates) write(ctx context.Context, name string, pair *keyPair) error {
	if err := c.r.WriteCertificate(ctx, name, pair.chain, pair.key); err != nil {
		return fmt.Errorf("its Secret cannot be written: %w", err)
	}
	return nil
}

// certificateFor parses a certificate and its key. It returns nil and the reason if the
// certificate is not valid for the name at this time. It does not check the issuer; clients do.
func certificateFor(name string, chain, key []byte, now time.Time) (*keyPair, string) {
	if len(chain) == 0 || len(key) == 0 {
		return nil, "no certificate was issued yet"
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, "its Secret has no valid certificate and key: " + err.Error()
	}
	switch err := pair.Leaf.VerifyHostname(name); {
	case err != nil:
		return nil, "its Secret has a certificate with another name: " + err.Error()
	case now.Before(pair.Leaf.NotBefore):
		return nil, "it is not valid before " + pair.Leaf.NotBefore.UTC().Format(time.RFC3339)
	case !now.Before(pair.Leaf.NotAfter):
		return nil, "it expired on " + pair.Leaf.NotAfter.UTC().Format(time.RFC3339)
	}
	return &keyPair{pair, chain, key}, ""
}

// renewalDue reports whether at most a third of a certificate's lifetime is left.
func renewalDue(pair *keyPair, now time.Time) bool {
	return pair.Leaf.NotAfter.Sub(now) <= pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)/3
}

// longerValid returns the certificate with the later expiry, or a if both are equal.
func longerValid(a, b *keyPair) *keyPair {
	if a == nil || b != nil && b.Leaf.NotAfter.After(a.Leaf.NotAfter) {
		return b
	}
	return a
}

// tlsPort is the TLS termination of a port. The zero value means no termination.
type tlsPort struct {
	name string // of the certificate
	h2   bool   // the backend speaks HTTP/2
}

// terminate terminates TLS on a connection. It refuses clients that request another name.
func (c *certificates) terminate(ctx context.Context, conn net.Conn, at tlsPort) (net.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if n := strings.TrimSuffix(hello.ServerName, "."); n != "" && !strings.EqualFold(n, at.name) {
			return nil, fmt.Errorf("the client requests %.80q, but this is %s", n, at.name)
		}
		pair, reason := c.get(at.name)
		if pair == nil {
			return nil, fmt.Errorf("there is no certificate for %s: %s", at.name, reason)
		}
		return &pair.Certificate, nil
	}}
	if at.h2 {
		config.NextProtos = []string{"h2"}
	}
	s := tls.Server(conn, config)
	if err := s.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS of %s: %w", at.name, err)
	}
	return s, nil
}
