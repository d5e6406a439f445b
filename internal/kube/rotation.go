package kube

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Rotation replaces certificates and their authority before they expire. It follows law 9: its stage is stored in a
// Secret, so that another leader can continue it, and at no time does one side use a certificate that the other side
// does not trust. The key of an authority is discarded at once and cannot be stolen: each rotation creates another
// authority.
//
//	serving -----------> serving, next --------------> serving, previous --------------> serving
//	   (2/3 of Lifetime)     (PublishTime: all trust both)    (RetainTime: all have switched)
type Rotation struct {
	Name   string // of the authorities
	Leaves []Leaf // the certificates that an authority signs

	// Constrained limits each authority to the names of Leaves, which must be DNS names of servers.
	Constrained bool

	Lifetime    time.Duration // of a certificate
	PublishTime time.Duration // until each side that verifies has loaded a new bundle
	RetainTime  time.Duration // until each side that serves has loaded new certificates
}

// A Leaf is a certificate with a key.
type Leaf struct {
	Certificate, Key string // their keys in the Secret
	Usage            x509.ExtKeyUsage
	Names            []string // DNS names or IP addresses
}

// Certificates are the certificate of an authority and the leaves that it signed, in PEM, by their keys in the Secret.
type Certificates map[string][]byte

// A RotationStage is the progress of a rotation.
type RotationStage struct {
	Serving, Next Certificates
	Previous      []byte    // certificate of the authority before
	Published     time.Time // when the bundle with Next was distributed
	Switched      time.Time // when Serving was last replaced
}

// Keys of the Secret. Those of Next have a prefix.
const (
	authorityKey = corev1.ServiceAccountRootCAKey // as cert-manager names it
	nextPrefix   = "next-"
	previousKey  = "previous-ca.crt"
	publishedKey = "published"
	switchedKey  = "switched"
)

// keys returns the keys of Certificates.
func (r *Rotation) keys() []string {
	keys := []string{authorityKey}
	for _, l := range r.Leaves {
		keys = append(keys, l.Certificate, l.Key)
	}
	return keys
}

// Parse reads a stage from the data of the Secret. Without data the stage is zero.
func (r *Rotation) Parse(data map[string][]byte) (s RotationStage, err error) {
	read := func(prefix string) (c Certificates) {
		for _, key := range r.keys() {
			if b := data[prefix+key]; len(b) > 0 {
				if c == nil {
					c = Certificates{}
				}
				c[key] = b
			}
		}
		return c
	}
	s.Serving, s.Next, s.Previous = read(""), read(nextPrefix), data[previousKey]
	for key, t := range map[string]*time.Time{publishedKey: &s.Published, switchedKey: &s.Switched} {
		if text := data[key]; len(text) > 0 {
			if *t, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
				return RotationStage{}, fmt.Errorf("%s is not a time", key)
			}
		}
	}
	return s, nil
}

// Data returns the data of the Secret for a stage. It keeps what old has besides.
func (r *Rotation) Data(s RotationStage, old map[string][]byte) map[string][]byte {
	data := maps.Clone(old)
	if data == nil {
		data = map[string][]byte{}
	}
	store := func(key string, b []byte) {
		if data[key] = b; len(b) == 0 {
			delete(data, key)
		}
	}
	for _, key := range r.keys() {
		store(key, s.Serving[key])
		store(nextPrefix+key, s.Next[key])
	}
	store(previousKey, s.Previous)
	for key, t := range map[string]time.Time{publishedKey: s.Published, switchedKey: s.Switched} {
		var text []byte
		if !t.IsZero() {
			text = t.UTC().AppendFormat(nil, time.RFC3339Nano)
		}
		store(key, text)
	}
	return data
}

// Bundle returns the authorities that must be trusted at this stage, in PEM.
func (s RotationStage) Bundle() []byte {
	return bytes.Join([][]byte{s.Serving[authorityKey], s.Previous, s.Next[authorityKey]}, nil)
}

// Advance returns the stage after s and the time of the next step. The caller must have distributed the bundle and the
// certificates of s, and must store the new stage. If there is nothing to do, the returned stage equals s.
func (r *Rotation) Advance(s RotationStage, now time.Time) (RotationStage, time.Time, error) {
	begin, end, err := r.validity(s.Serving)
	switch {
	case err != nil: // missing or invalid: nothing can be lost
		issued, err := r.Issue(now)
		return RotationStage{Serving: issued, Switched: now}, now, err
	case s.Next != nil:
		if r.Check(s.Next) != nil { // another writer changed the Secret
			s.Next, s.Published = nil, time.Time{}
			return s, now, nil
		}
		if s.Published.IsZero() || s.Published.After(now) {
			s.Published = now
			return s, now.Add(r.PublishTime), nil
		}
		if due := s.Published.Add(r.PublishTime); now.Before(due) && now.Before(end) { // an expired certificate does not wait
			return s, due, nil
		}
		return RotationStage{Serving: s.Next, Previous: s.Serving[authorityKey], Switched: now}, now, nil
	case s.Previous != nil:
		if due := s.Switched.Add(r.RetainTime); now.Before(due) && !s.Switched.After(now) {
			return s, due, nil
		}
		s.Previous = nil
		return s, now, nil
	}
	if due := begin.Add(end.Sub(begin) * 2 / 3); now.Before(due) {
		return s, due, nil
	}
	s.Next, err = r.Issue(now)
	s.Published = time.Time{}
	return s, now, err
}

// Check returns an error if a leaf or its key is missing or invalid, or if the authority did not sign the leaf. It does
// not check whether a leaf has expired.
func (r *Rotation) Check(c Certificates) error {
	_, _, err := r.validity(c)
	return err
}

// validity returns the time in which the certificates are valid, or the error of Check.
func (r *Rotation) validity(c Certificates) (begin, end time.Time, err error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c[authorityKey]) {
		return begin, end, errors.New("there is no certificate authority yet")
	}
	for _, l := range r.Leaves {
		pair, err := tls.X509KeyPair(c[l.Certificate], c[l.Key])
		if err != nil {
			return begin, end, err
		}
		verify := x509.VerifyOptions{Roots: roots, CurrentTime: pair.Leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
		if _, err := pair.Leaf.Verify(verify); err != nil {
			return begin, end, err
		}
		begin, end = pair.Leaf.NotBefore, pair.Leaf.NotAfter
	}
	return begin, end, nil
}

// Issue creates an authority and the leaves that it signs.
func (r *Rotation) Issue(now time.Time) (Certificates, error) {
	var only []string
	for _, l := range r.Leaves {
		if r.Constrained {
			only = append(only, l.Names...)
		}
	}
	a, err := NewCertificateAuthority(r.Name, now, r.Lifetime, only...)
	if err != nil {
		return nil, err
	}
	issued := Certificates{authorityKey: a.PEM()}
	for _, l := range r.Leaves {
		if issued[l.Certificate], issued[l.Key], err = a.Sign(l.Usage, l.Names...); err != nil {
			return nil, err
		}
	}
	return issued, nil
}
