package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	maxCABytes     = 64 << 10         // bytes of PEM certificates
	caFetchTimeout = 10 * time.Second // for one fetch
	caRetryAfter   = time.Minute      // after a failed fetch
	maxCAFetches   = 4                // concurrent fetches
)

// caCache caches the certificate authorities of clusters by their hash. The content for a hash never changes, so each authority is
// fetched once.
type caCache struct {
	fetch    func(context.Context, Cluster) ([]byte, error)
	errorLog *errorLog

	mu       sync.Mutex
	byHash   map[string][]byte    // PEM by hash
	after    map[string]time.Time // by cluster id: do not fetch before this time
	inFlight map[string]bool      // cluster ids with a fetch under way
	fetching sync.WaitGroup       // fetches end with their context
}

// get returns the authority of c, or nil while it is unknown. If it is unknown and ask is set, of starts a fetch and does not wait for it.
// The authority in c's profile (has) is good enough if it matches the hash.
func (a *caCache) get(ctx context.Context, c Cluster, has []byte, now time.Time, ask bool) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.byHash[c.CAHash]; b != nil {
		return b
	}
	if clean, hash, err := certificates(has); err == nil && hash == c.CAHash {
		a.byHash[hash] = clean
		return clean
	}
	if !ask || c.CAHash == "" || a.inFlight[c.ID] || len(a.inFlight) >= maxCAFetches || now.Before(a.after[c.ID]) {
		return nil
	}
	a.inFlight[c.ID] = true
	a.fetching.Go(func() {
		pem, err := a.fetchCA(ctx, c)
		if err != nil {
			err = fmt.Errorf("CA certificates of cluster %s (%s): %w", c.Name, c.ID, err)
		}
		a.errorLog.outcome(ctx, "authority of "+c.ID, err)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.inFlight, c.ID)
		if err != nil {
			a.after[c.ID] = now.Add(caRetryAfter)
			return
		}
		a.byHash[c.CAHash] = pem
	})
	return nil
}

func (a *caCache) fetchCA(ctx context.Context, c Cluster) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, caFetchTimeout)
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
		return nil, fmt.Errorf("the hash is %s, but the record has %s; the certificates are not published", hash, c.CAHash)
	}
	return clean, nil
}

// retain drops the entries that belong to none of clusters.
func (a *caCache) retain(clusters map[string]clusterStatus) {
	hashes := map[string]bool{}
	for _, s := range clusters {
		if s.Cluster != nil {
			hashes[s.CAHash] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.byHash, func(hash string, _ []byte) bool { return !hashes[hash] })
	for id := range a.after {
		if _, ok := clusters[id]; !ok {
			delete(a.after, id)
			a.errorLog.drop("authority of " + id)
		}
	}
}

// certificates parses a list of PEM certificates. It returns only the certificates, without any surrounding text, and their hash. The hash
// is "sha256:" and the hex SHA-256 of their sorted and concatenated DER forms.
func certificates(text []byte) (clean []byte, hash string, err error) {
	if len(text) > maxCABytes {
		return nil, "", fmt.Errorf("the certificates have %d bytes, more than %d", len(text), maxCABytes)
	}
	var ders [][]byte
	for rest := text; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, "", errors.New("it contains data that is not a PEM certificate")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, "", fmt.Errorf("certificate %d: %w", len(ders)+1, err)
		}
		ders = append(ders, block.Bytes)
		clean = append(clean, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	if len(ders) == 0 {
		return nil, "", errors.New("it contains no certificate")
	}
	slices.SortFunc(ders, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(ders, nil))
	return clean, "sha256:" + hex.EncodeToString(sum[:]), nil
}
