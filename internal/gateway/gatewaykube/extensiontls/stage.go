package extensiontls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/authority"
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

// issue makes a set: a server of these names, and the client of that one.
func issue(names []string, client string, now time.Time, life time.Duration) (set, error) {
	a, err := authority.New("tailplane-extension", now, life)
	if err != nil {
		return set{}, err
	}
	made := set{authority: a.PEM()}
	if made.server, made.serverKey, err = a.Sign(x509.ExtKeyUsageServerAuth, names...); err != nil {
		return set{}, err
	}
	if made.client, made.clientKey, err = a.Sign(x509.ExtKeyUsageClientAuth, client); err != nil {
		return set{}, err
	}
	return made, nil
}
