package controller

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
)

// A certificateSet contains the certificates of both sides, signed by one CA, in PEM. The CA's key is
// discarded immediately and therefore cannot be stolen.
type certificateSet struct{ authority, server, serverKey, client, clientKey []byte }

// A rotationStage is the progress of a rotation, as stored in the server's Secret.
//
//	serving -----------> serving, next --------------> serving, previous --> serving
//	        (2/3 of life)   (both sides trust both)      (both have switched)
type rotationStage struct {
	serving, upcoming certificateSet
	previous          []byte    // the previous CA
	published         time.Time // when both sides received the next CA
	switched          time.Time
}

// Keys of the server's Secret. The first two are those of kubernetes.io/tls.
var stageFields = []string{"tls.crt", "tls.key", "ca.crt", "client.crt", "client.key"}

func (s *certificateSet) parts() []*[]byte {
	return []*[]byte{&s.server, &s.serverKey, &s.authority, &s.client, &s.clientKey}
}

func parseStage(data map[string][]byte) (s rotationStage, err error) {
	for i, field := range stageFields {
		*s.serving.parts()[i], *s.upcoming.parts()[i] = data[field], data["next-"+field]
	}
	s.previous = data["previous-ca.crt"]
	for field, t := range map[string]*time.Time{"published": &s.published, "switched": &s.switched} {
		if text := data[field]; len(text) > 0 {
			if *t, err = time.Parse(time.RFC3339, string(text)); err != nil {
				return rotationStage{}, fmt.Errorf("%s is not a time", field)
			}
		}
	}
	return s, nil
}

func (s rotationStage) data() map[string][]byte {
	data := map[string][]byte{"tls.crt": nil, "tls.key": nil} // required by the Secret type
	store := func(field string, b []byte) {
		if len(b) > 0 {
			data[field] = b
		}
	}
	for i, field := range stageFields {
		store(field, *s.serving.parts()[i])
		store("next-"+field, *s.upcoming.parts()[i])
	}
	store("previous-ca.crt", s.previous)
	for field, t := range map[string]time.Time{"published": s.published, "switched": s.switched} {
		if !t.IsZero() {
			store(field, []byte(t.UTC().Format(time.RFC3339)))
		}
	}
	return data
}

// bundle returns the CAs that both sides must trust at this stage.
func (s rotationStage) bundle() []byte {
	return bytes.Join([][]byte{s.serving.authority, s.previous, s.upcoming.authority}, nil)
}

// rotationTimes are the times of a rotation.
type rotationTimes struct {
	lifetime time.Duration // of a certificate
	publish  time.Duration // until both sides have loaded a new CA; the kubelet updates a mounted Secret after more than a minute
	retain   time.Duration // until both sides have loaded new certificates
}

// next returns the stage after s and the time of the next step. The caller must have distributed s
// to both sides. If there is nothing to do, the returned stage equals s.
func (s rotationStage) next(now time.Time, w rotationTimes, issue func(time.Time) (certificateSet, error)) (rotationStage, time.Time, error) {
	begin, end, err := s.serving.validity()
	switch {
	case err != nil: // missing or invalid: nothing can be lost
		issued, err := issue(now)
		return rotationStage{serving: issued, switched: now}, now, err
	case s.upcoming.server != nil:
		if _, _, err := s.upcoming.validity(); err != nil { // another party changed the Secret
			s.upcoming, s.published = certificateSet{}, time.Time{}
			return s, now, nil
		}
		if s.published.IsZero() || s.published.After(now) {
			s.published = now
			return s, now.Add(w.publish), nil
		}
		if due := s.published.Add(w.publish); now.Before(due) && now.Before(end) { // do not wait if the serving certificate has expired
			return s, due, nil
		}
		return rotationStage{serving: s.upcoming, previous: s.serving.authority, switched: now}, now, nil
	case s.previous != nil:
		if due := s.switched.Add(w.retain); now.Before(due) && !s.switched.After(now) {
			return s, due, nil
		}
		s.previous = nil
		return s, now, nil
	}
	if due := begin.Add(end.Sub(begin) * 2 / 3); now.Before(due) {
		return s, due, nil
	}
	s.upcoming, err = issue(now)
	s.published = time.Time{}
	return s, now, err
}

// validity returns the validity period of the certificates. It returns an error if a certificate
// is invalid or not signed by the CA of the set.
func (s certificateSet) validity() (begin, end time.Time, err error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.authority) {
		return begin, end, errors.New("there is no certificate authority yet")
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

// issueCertificates creates a set with a server certificate for names and a client certificate for client.
func issueCertificates(names []string, client string, now time.Time, life time.Duration) (certificateSet, error) {
	a, err := kube.NewCertificateAuthority("tailplane-extension", now, life)
	if err != nil {
		return certificateSet{}, err
	}
	issued := certificateSet{authority: a.PEM()}
	if issued.server, issued.serverKey, err = a.Sign(x509.ExtKeyUsageServerAuth, names...); err != nil {
		return certificateSet{}, err
	}
	if issued.client, issued.clientKey, err = a.Sign(x509.ExtKeyUsageClientAuth, client); err != nil {
		return certificateSet{}, err
	}
	return issued, nil
}
