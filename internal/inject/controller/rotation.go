package controller

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
)

// keyPair is a certificate with its key and the CA certificate that signed it. The CA key is discarded at once,
// so it cannot be stolen. Each rotation creates a new CA.
type keyPair struct {
	ca, certificate, key []byte // PEM
}

// rotationState is the state of a rotation, as stored in the Secret.
//
//	serving ----------> serving, next ----------> serving, next, published
//	   ^   (2/3 of its life)         (bundle read back)        |
//	   |                                                       | (60 s: every API server has seen the bundle)
//	   +------------------ serving, previous <-----------------+
//	       (5 min: every replica has the new leaf)
type rotationState struct {
	serving, next keyPair
	previous      []byte    // CA of the previously served certificate
	published     time.Time // when the bundle with next's CA was read back
	switched      time.Time // when serving was last replaced
}

// Keys of the Secret. The first three are those of kubernetes.io/tls and of cert-manager.
const (
	certificateKey, keyKey, caKey             = "tls.crt", "tls.key", "ca.crt"
	nextCertificateKey, nextKeyKey, nextCAKey = "next-tls.crt", "next-tls.key", "next-ca.crt"
	previousKey, publishedKey, switchedKey    = "previous-ca.crt", "published", "switched"
)

func parseState(data map[string][]byte) (s rotationState, err error) {
	s.serving = keyPair{data[caKey], data[certificateKey], data[keyKey]}
	s.next = keyPair{data[nextCAKey], data[nextCertificateKey], data[nextKeyKey]}
	s.previous = data[previousKey]
	for key, t := range map[string]*time.Time{publishedKey: &s.published, switchedKey: &s.switched} {
		if v := data[key]; len(v) > 0 {
			if *t, err = time.Parse(time.RFC3339Nano, string(v)); err != nil {
				return rotationState{}, fmt.Errorf("%s is not a time", key)
			}
		}
	}
	return s, nil
}

// data returns the data of the Secret. It keeps keys of other writers.
func (s rotationState) data(old map[string][]byte) map[string][]byte {
	d := maps.Clone(old)
	if d == nil {
		d = map[string][]byte{}
	}
	stamp := func(t time.Time) []byte {
		if t.IsZero() {
			return nil
		}
		return []byte(t.UTC().Format(time.RFC3339Nano))
	}
	for key, v := range map[string][]byte{
		caKey: s.serving.ca, certificateKey: s.serving.certificate, keyKey: s.serving.key,
		nextCAKey: s.next.ca, nextCertificateKey: s.next.certificate, nextKeyKey: s.next.key,
		previousKey: s.previous, publishedKey: stamp(s.published), switchedKey: stamp(s.switched),
	} {
		if d[key] = v; len(v) == 0 {
			delete(d, key)
		}
	}
	return d
}

// bundle returns the CA bundle that the API server must trust at this stage.
func (s rotationState) bundle() []byte {
	var b []byte
	for _, a := range [][]byte{s.serving.ca, s.previous, s.next.ca} {
		b = append(b, a...)
	}
	return b
}

// rotationTimes are the durations of a rotation.
type rotationTimes struct {
	life    time.Duration // of a certificate
	publish time.Duration // for every API server to load a new bundle
	keepCA  time.Duration // for every replica to load a new certificate
}

// advance returns the stage after s and the time of the next step. It requires that the API server has the
// bundle of s. It returns s itself if nothing is due.
func (s rotationState) advance(now time.Time, w rotationTimes, issue func(now time.Time) (keyPair, error)) (rotationState, time.Time, error) {
	leaf, err := s.serving.leaf()
	switch {
	case err != nil: // there is no valid certificate, so nothing can be lost
		p, err := issue(now)
		return rotationState{serving: p, switched: now}, now, err
	case s.next.certificate != nil:
		if _, err := s.next.leaf(); err != nil { // the Secret was changed externally
			s.next, s.published = keyPair{}, time.Time{}
			return s, now, nil
		}
		if s.published.IsZero() || s.published.After(now) {
			s.published = now
			return s, now.Add(w.publish), nil
		}
		// If the current certificate has expired, waiting has no benefit.
		if due := s.published.Add(w.publish); now.Before(due) && now.Before(leaf.NotAfter) {
			return s, due, nil
		}
		return rotationState{serving: s.next, previous: s.serving.ca, switched: now}, now.Add(w.keepCA), nil
	case s.previous != nil:
		if due := s.switched.Add(w.keepCA); now.Before(due) && !s.switched.After(now) {
			return s, due, nil
		}
		s.previous = nil
		return s, now, nil
	}
	if due := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3); now.Before(due) {
		return s, due, nil
	}
	s.next, err = issue(now)
	s.published = time.Time{}
	return s, now, err
}

// leaf returns the certificate if the pair is valid.
func (p keyPair) leaf() (*x509.Certificate, error) {
	if len(p.certificate) == 0 || len(p.key) == 0 {
		return nil, errors.New("there is no certificate yet")
	}
	c, err := tls.X509KeyPair(p.certificate, p.key)
	if err != nil {
		return nil, err
	}
	return c.Leaf, nil
}

// issue creates a CA and a serving certificate for names.
func issue(names []string, now time.Time, life time.Duration) (keyPair, error) {
	a, err := kube.NewCertificateAuthority("tailplane-inject", now, life)
	if err != nil {
		return keyPair{}, err
	}
	certificate, key, err := a.Sign(x509.ExtKeyUsageServerAuth, names...)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{a.PEM(), certificate, key}, nil
}
