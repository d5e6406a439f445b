package extensiontls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// A set is what both sides prove themselves with, by one authority, whose own key
// is thrown away at once: what is not there cannot be stolen. All of it is PEM.
type set struct{ authority, server, serverKey, client, clientKey []byte }

// A stage is where a rotation stands, as the server's Secret holds it.
//
//	serving -----------> serving, next --------------> serving, previous --> serving
//	        (2/3 of life)   (both sides trust both)      (both have switched)
type stage struct {
	serving, next set
	previous      []byte    // the authority before
	published     time.Time // since when both sides were told of the next one's authority
	switched      time.Time
}

// Keys of the server's Secret; the first two are those of kubernetes.io/tls.
var fields = []string{"tls.crt", "tls.key", "ca.crt", "client.crt", "client.key"}

func (s *set) parts() []*[]byte {
	return []*[]byte{&s.server, &s.serverKey, &s.authority, &s.client, &s.clientKey}
}

func readStage(data map[string][]byte) (s stage, err error) {
	for i, field := range fields {
		*s.serving.parts()[i], *s.next.parts()[i] = data[field], data["next-"+field]
	}
	s.previous = data["previous-ca.crt"]
	for field, t := range map[string]*time.Time{"published": &s.published, "switched": &s.switched} {
		if text := data[field]; len(text) > 0 {
			if *t, err = time.Parse(time.RFC3339, string(text)); err != nil {
				return stage{}, fmt.Errorf("%s is not a time", field)
			}
		}
	}
	return s, nil
}

func (s stage) data() map[string][]byte {
	data := map[string][]byte{"tls.crt": nil, "tls.key": nil} // which their kind of Secret must have
	put := func(field string, b []byte) {
		if len(b) > 0 {
			data[field] = b
		}
	}
	for i, field := range fields {
		put(field, *s.serving.parts()[i])
		put("next-"+field, *s.next.parts()[i])
	}
	put("previous-ca.crt", s.previous)
	for field, t := range map[string]time.Time{"published": s.published, "switched": s.switched} {
		if !t.IsZero() {
			put(field, []byte(t.UTC().Format(time.RFC3339)))
		}
	}
	return data
}

// bundle is what both sides have to trust at this stage.
func (s stage) bundle() []byte {
	return bytes.Join([][]byte{s.serving.authority, s.previous, s.next.authority}, nil)
}

// waits of a rotation.
type waits struct {
	life    time.Duration // of a certificate
	publish time.Duration // for both sides to see a new authority: a mounted Secret takes a kubelet more than a minute
	keep    time.Duration // for both sides to take up new certificates
}

// step says which stage comes after s, given that both sides were told of s, and
// when to look again; the same stage if there is nothing to do.
func (s stage) step(now time.Time, w waits, issue func(time.Time) (set, error)) (stage, time.Time, error) {
	begin, end, err := s.serving.validity()
	switch {
	case err != nil: // none yet, or what is there is none: there is nothing to lose
		made, err := issue(now)
		return stage{serving: made, switched: now}, now, err
	case s.next.server != nil:
		if _, _, err := s.next.validity(); err != nil { // somebody touched it
			s.next, s.published = set{}, time.Time{}
			return s, now, nil
		}
		if s.published.IsZero() || s.published.After(now) {
			s.published = now
			return s, now.Add(w.publish), nil
		}
		if due := s.published.Add(w.publish); now.Before(due) && now.Before(end) { // nobody is helped by waiting with what is over
			return s, due, nil
		}
		return stage{serving: s.next, previous: s.serving.authority, switched: now}, now, nil
	case s.previous != nil:
		if due := s.switched.Add(w.keep); now.Before(due) && !s.switched.After(now) {
			return s, due, nil
		}
		s.previous = nil
		return s, now, nil
	}
	if due := begin.Add(end.Sub(begin) * 2 / 3); now.Before(due) {
		return s, due, nil
	}
	s.next, err = issue(now)
	s.published = time.Time{}
	return s, now, err
}

// validity is when both certificates are good; an error if one is none, or not by
// the set's authority.
func (s set) validity() (begin, end time.Time, err error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.authority) {
		return begin, end, errors.New("there is no authority yet")
	}
	for _, p := range [][2][]byte{{s.server, s.serverKey}, {s.client, s.clientKey}} {
		pair, err := tls.X509KeyPair(p[0], p[1])
		if err != nil {
			return begin, end, err
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: pair.Leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			return begin, end, err
		}
		begin, end = pair.Leaf.NotBefore, pair.Leaf.NotAfter
	}
	return begin, end, nil
}

// early is how far clocks may be apart.
const early = 5 * time.Minute

// issue makes a set: a server of these names, and the client of that one.
func issue(names []string, client string, now time.Time, life time.Duration) (set, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return set{}, err
	}
	serial := func() *big.Int {
		b := make([]byte, 16)
		rand.Read(b) // never fails
		return new(big.Int).SetBytes(b)
	}
	root := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "tailplane-extension " + now.UTC().Format(time.DateOnly)}, NotBefore: now.Add(-early), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return set{}, err
	}
	text := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	leaf := func(usage x509.ExtKeyUsage, names ...string) (certificate, secret []byte, err error) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		of := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "tailplane-extension"}, DNSNames: names, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
		der, err := x509.CreateCertificate(rand.Reader, of, root, k.Public(), key)
		if err != nil {
			return nil, nil, err
		}
		private, err := x509.MarshalPKCS8PrivateKey(k)
		return text("CERTIFICATE", der), text("PRIVATE KEY", private), err
	}
	made := set{authority: text("CERTIFICATE", der)}
	if made.server, made.serverKey, err = leaf(x509.ExtKeyUsageServerAuth, names...); err != nil {
		return set{}, err
	}
	made.client, made.clientKey, err = leaf(x509.ExtKeyUsageClientAuth, client)
	return made, err
}
