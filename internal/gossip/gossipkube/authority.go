package gossipkube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	maxAuthority   = 64 << 10         // bytes of certificates, PEM
	authorityLimit = 10 * time.Second // of one question
	authorityRetry = time.Minute      // after one that failed
	authoritiesAt  = 4                // questions at once
)

// authorities are the certificate authorities of clusters, by their hash. What
// fits a hash fits it for ever, so each is asked for once.
type authorities struct {
	fetch func(context.Context, Cluster) ([]byte, error)
	said  *reports

	mu     sync.Mutex
	known  map[string][]byte    // PEM by hash
	after  map[string]time.Time // by cluster id: not to be asked before
	asking map[string]bool      // cluster ids
	asked  sync.WaitGroup
}

// of returns the authority of c, or nil while it is not known; then, if c can be
// asked, it asks for it, without waiting. What c's profile has is good enough if
// it fits the hash.
func (a *authorities) of(ctx context.Context, c Cluster, has []byte, now time.Time, ask bool) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.known[c.CAHash]; b != nil {
		return b
	}
	if clean, hash, err := certificates(has); err == nil && hash == c.CAHash {
		a.known[hash] = clean
		return clean
	}
	if !ask || c.CAHash == "" || a.asking[c.ID] || len(a.asking) >= authoritiesAt || now.Before(a.after[c.ID]) {
		return nil
	}
	a.asking[c.ID] = true
	a.asked.Go(func() {
		pem, err := a.ask(ctx, c)
		if err != nil {
			err = fmt.Errorf("the certificate authority of cluster %s (%s): %w", c.Name, c.ID, err)
		}
		a.said.outcome(ctx, "authority of "+c.ID, err)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asking, c.ID)
		if err != nil {
			a.after[c.ID] = now.Add(authorityRetry)
			return
		}
		a.known[c.CAHash] = pem
	})
	return nil
}

func (a *authorities) ask(ctx context.Context, c Cluster) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, authorityLimit)
	defer cancel()
	b, err := a.fetch(ctx, c)
	if err != nil {
		return nil, err
	}
	clean, hash, err := certificates(b)
	if err != nil {
		return nil, err
	}
	if hash != c.CAHash {
		return nil, fmt.Errorf("it is %s, but its record says %s; it is not published", hash, c.CAHash)
	}
	return clean, nil
}

// keep forgets what belongs to none of clusters.
func (a *authorities) keep(clusters map[string]standing) {
	hashes := map[string]bool{}
	for _, s := range clusters {
		if s.Cluster != nil {
			hashes[s.CAHash] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for h := range a.known {
		if !hashes[h] {
			delete(a.known, h)
		}
	}
	for id := range a.after {
		if _, ok := clusters[id]; !ok {
			delete(a.after, id)
			a.said.drop("authority of " + id)
		}
	}
}

// wait returns when no question is open. They end with their context.
func (a *authorities) wait() { a.asked.Wait() }

// certificates reads a list of certificates in PEM. It returns them and nothing
// else that stood beside them, and their hash: "sha256:" and the SHA-256, in
// hex, of their DER forms one after the other, sorted.
func certificates(text []byte) (clean []byte, hash string, err error) {
	if len(text) > maxAuthority {
		return nil, "", fmt.Errorf("it has %d bytes; at most %d are published", len(text), maxAuthority)
	}
	var ders [][]byte
	for rest := text; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, "", errors.New("it holds something that is no certificate in PEM")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, "", fmt.Errorf("certificate %d: %w", len(ders)+1, err)
		}
		ders = append(ders, block.Bytes)
		clean = append(clean, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	if len(ders) == 0 {
		return nil, "", errors.New("it holds no certificate")
	}
	slices.SortFunc(ders, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(ders, nil))
	return clean, "sha256:" + hex.EncodeToString(sum[:]), nil
}
