package controller

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"
)

// TestRotation runs a rotation step by step. At each step the served certificate is trusted, and the Secret
// holds the complete state.
func TestRotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := rotationTimes{life: 90 * time.Hour, publish: time.Minute, keepCA: 5 * time.Minute}
	made := 0
	make := func(now time.Time) (keyPair, error) {
		made++
		return issue([]string{"tailplane-inject.ns.svc", "127.0.0.1"}, now, w.life)
	}
	var s rotationState
	var trusted []byte // by the API server: the bundle of the previous stage, because it may lag behind
	var served []byte  // by a replica that lags behind
	for _, want := range []struct {
		why                                 string
		after                               time.Duration
		next, published, previous, sameLeaf bool
	}{
		{"the first certificate", 0, false, false, false, false},
		{"nothing to do", time.Hour, false, false, false, true},
		{"nothing to do", 58 * time.Hour, false, false, false, true},
		{"two thirds are over: another is made", time.Hour + time.Minute, true, false, false, true},
		{"the API server has read it", time.Second, true, true, false, true},
		{"not every API server has", 30 * time.Second, true, true, false, true},
		{"now it is served", 31 * time.Second, false, false, true, false},
		{"not every replica has it", 4 * time.Minute, false, false, true, true},
		{"now the old one goes", 2 * time.Minute, false, false, false, true},
		{"nothing to do", time.Hour, false, false, false, true},
	} {
		now = now.Add(want.after)
		read, err := parseState(s.data(map[string][]byte{"other": []byte("x")})) // another leader
		if err != nil || read.data(nil) == nil {
			t.Fatal(err)
		}
		was := read.serving.certificate
		next, wake, err := read.advance(now, w, make)
		if err != nil {
			t.Fatal(want.why, err)
		}
		if got := next.next.certificate != nil; got != want.next || next.published.IsZero() == want.published || (next.previous != nil) != want.previous || bytes.Equal(was, next.serving.certificate) != want.sameLeaf {
			t.Errorf("%s: next %v, published %v, previous %v", want.why, got, next.published, next.previous != nil)
		}
		if wake.Before(now) {
			t.Errorf("%s: the next step is in the past", want.why)
		}
		// A replica or API server that is one stage behind must still work.
		for _, leaf := range [][]byte{served, next.serving.certificate} {
			for _, bundle := range [][]byte{trusted, next.bundle()} {
				if leaf == nil || bundle == nil {
					continue
				}
				if err := verify(leaf, bundle, now); err != nil {
					t.Errorf("%s: %v", want.why, err)
				}
			}
		}
		served, trusted = next.serving.certificate, next.bundle()
		s = next
	}
	if made != 2 {
		t.Errorf("%d certificates for one rotation", made)
	}
	if d := s.data(map[string][]byte{"other": []byte("x"), nextKeyKey: []byte("y")}); string(d["other"]) != "x" || d[nextKeyKey] != nil {
		t.Error("the Secret lost other keys, or kept expired data")
	}
}

func verify(leaf, bundle []byte, now time.Time) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	c, err := x509.ParseCertificate(firstCertificate(leaf))
	if err != nil {
		return err
	}
	_, err = c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, DNSName: "tailplane-inject.ns.svc"})
	return err
}

// TestRotationRecovers checks that a manually changed Secret is corrected, and that an expired certificate
// does not wait.
func TestRotationRecovers(t *testing.T) {
	now := time.Now()
	w := rotationTimes{life: time.Hour, publish: time.Minute, keepCA: time.Minute}
	make := func(now time.Time) (keyPair, error) { return issue([]string{"a"}, now, w.life) }
	first, err := make(now)
	if err != nil {
		t.Fatal(err)
	}
	broken := rotationState{serving: keyPair{first.ca, first.certificate, []byte("no key")}}
	if next, _, err := broken.advance(now, w, make); err != nil || bytes.Equal(next.serving.certificate, first.certificate) {
		t.Errorf("an invalid key: %v", err)
	}
	half := rotationState{serving: first, next: keyPair{certificate: []byte("none")}, published: now}
	if next, _, err := half.advance(now, w, make); err != nil || next.next.certificate != nil || !bytes.Equal(next.serving.certificate, first.certificate) {
		t.Errorf("an invalid next certificate: %v", err)
	}
	second, err := make(now)
	if err != nil {
		t.Fatal(err)
	}
	late := rotationState{serving: first, next: second, published: now.Add(2*time.Hour - time.Second)}
	if next, _, err := late.advance(now.Add(2*time.Hour), w, make); err != nil || !bytes.Equal(next.serving.certificate, second.certificate) {
		t.Errorf("an expired leaf: %v", err)
	}
	back := rotationState{serving: first, previous: second.ca, switched: now.Add(time.Hour)}
	if next, _, err := back.advance(now, w, make); err != nil || next.previous != nil {
		t.Errorf("a clock that was set back: %v", err)
	}
	if _, err := parseState(map[string][]byte{switchedKey: []byte("yesterday")}); err == nil {
		t.Error("yesterday is a time")
	}
}
