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

// A set contains the certificates of both sides, signed by one CA, in PEM. The CA's key is
// discarded immediately and therefore cannot be stolen.
type set struct{ authority, server, serverKey, client, clientKey []byte }

// A stage is the progress of a rotation, as stored in the server's Secret.
//
//	serving -----------> serving, next --------------> serving, previous --> serving
//	        (2/3 of life)   (both sides trust both)      (both have switched)
type stage struct {
	serving, next set
	previous      []byte    // the previous CA
	published     time.Time // when both sides received the next CA
	switched      time.Time
}

// Keys of the server's Secret. The first two are those of kubernetes.io/tls.
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
	data := map[string][]byte{"tls.crt": nil, "tls.key": nil} // required by the Secret type
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

// bundle returns the CAs that both sides must trust at this stage.
func (s stage) bundle() []byte {
	return bytes.Join([][]byte{s.serving.authority, s.previous, s.next.authority}, nil)
}

// waits are the times of a rotation.
type waits struct {
	life    time.Duration // of a certificate
	publish time.Duration // until both sides have loaded a new CA; the kubelet updates a mounted Secret after more than a minute
	keep    time.Duration // until both sides have loaded new certificates
}

// step returns the stage after s and the time of the next step. The caller must have distributed s
// to both sides. If there is nothing to do, the returned stage equals s.
func (s stage) step(now time.Time, w waits, issue func(time.Time) (set, error)) (stage, time.Time, error) {
	begin, end, err := s.serving.validity()
	switch {
	case err != nil: // missing or invalid: nothing can be lost
		made, err := issue(now)
		return stage{serving: made, switched: now}, now, err
	case s.next.server != nil:
		if _, _, err := s.next.validity(); err != nil { // another party changed the Secret
			s.next, s.published = set{}, time.Time{}
			return s, now, nil
		}
		if s.published.IsZero() || s.published.After(now) {
			s.published = now
			return s, now.Add(w.publish), nil
		}
		if due := s.published.Add(w.publish); now.Before(due) && now.Before(end) { // do not wait if the serving certificate has expired
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

// validity returns the validity period of the certificates. It returns an error if a certificate
// is invalid or not signed by the CA of the set.
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

// issue creates a set with a server certificate for names and a client certificate for client.
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
