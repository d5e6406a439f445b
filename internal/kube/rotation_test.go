package kube_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
)

// verifyLeaf returns an error unless a certificate is valid for a name and signed by an authority in the bundle.
func verifyLeaf(bundle, certificate []byte, name string, usage x509.ExtKeyUsage, now time.Time) error {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return errors.New("there is no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// serverRotation is a rotation of one server certificate.
func serverRotation(life, publish, retain time.Duration) *kube.Rotation {
	return &kube.Rotation{Name: "tailplane-test", Lifetime: life, PublishTime: publish, RetainTime: retain,
		Leaves: []kube.Leaf{{Certificate: "tls.crt", Key: "tls.key", Usage: x509.ExtKeyUsageServerAuth, Names: []string{"tailplane-inject.ns.svc", "127.0.0.1"}}}}
}

// TestRotation runs a rotation step by step. At each step the served certificate is trusted, and the Secret
// holds the complete state.
func TestRotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := serverRotation(90*time.Hour, time.Minute, 5*time.Minute)
	made := map[string]bool{}
	var s kube.RotationStage
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
		read, err := r.Parse(r.Data(s, map[string][]byte{"other": []byte("x")})) // another leader
		if err != nil || r.Data(read, nil) == nil {
			t.Fatal(err)
		}
		was := read.Serving["tls.crt"]
		next, wake, err := r.Advance(read, now)
		if err != nil {
			t.Fatal(want.why, err)
		}
		switch got := next.Next != nil; {
		case got != want.next:
			t.Errorf("%s: next: got = %v, want %v; %v", want.why, got, want.next, next.Previous != nil)
		case next.Published.IsZero() == want.published:
			t.Errorf("%s: next: next.Published.IsZero() = %v, the same as want.published; %v",
				want.why, next.Published.IsZero(), next.Previous != nil)
		case (next.Previous != nil) != want.previous:
			t.Errorf("%s: next: (next.Previous != nil) != want.previous, got = %v, %v, %v",
				want.why, got, next.Published, next.Previous != nil)
		case bytes.Equal(was, next.Serving["tls.crt"]) != want.sameLeaf:
			t.Errorf("%s: next: got %v, want %v; %v",
				want.why, bytes.Equal(was, next.Serving["tls.crt"]), want.sameLeaf, next.Previous != nil)
		}
		if wake.Before(now) {
			t.Errorf("%s: the next step is in the past", want.why)
		}
		// A replica or API server that is one stage behind must still work.
		for _, leaf := range [][]byte{served, next.Serving["tls.crt"]} {
			for _, bundle := range [][]byte{trusted, next.Bundle()} {
				if leaf == nil || bundle == nil {
					continue
				}
				if err := verifyLeaf(bundle, leaf, "tailplane-inject.ns.svc", x509.ExtKeyUsageServerAuth, now); err != nil {
					t.Errorf("%s: %v", want.why, err)
				}
			}
		}
		served, trusted = next.Serving["tls.crt"], next.Bundle()
		made[string(served)], made[string(next.Next["tls.crt"])] = true, true
		s = next
	}
	if delete(made, ""); len(made) != 2 {
		t.Errorf("%d certificates for one rotation", len(made))
	}
	if d := r.Data(s, map[string][]byte{"other": []byte("x"), "next-tls.key": []byte("y")}); string(d["other"]) != "x" || d["next-tls.key"] != nil {
		t.Error("the Secret lost other keys, or kept expired data")
	}
}

// TestRotationRecovers checks that a manually changed Secret is corrected, and that an expired certificate
// does not wait.
func TestRotationRecovers(t *testing.T) {
	now := time.Now()
	r := serverRotation(time.Hour, time.Minute, time.Minute)
	issue := func() kube.Certificates {
		t.Helper()
		c, err := r.Issue(now)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := issue(), issue()
	broken := kube.RotationStage{Serving: kube.Certificates{"ca.crt": first["ca.crt"], "tls.crt": first["tls.crt"], "tls.key": []byte("no key")}}
	if next, _, err := r.Advance(broken, now); err != nil || bytes.Equal(next.Serving["tls.crt"], first["tls.crt"]) {
		t.Errorf("an invalid key: %v", err)
	}
	foreign := kube.RotationStage{Serving: kube.Certificates{"ca.crt": second["ca.crt"], "tls.crt": first["tls.crt"], "tls.key": first["tls.key"]}}
	if next, _, err := r.Advance(foreign, now); err != nil || bytes.Equal(next.Serving["tls.crt"], first["tls.crt"]) {
		t.Errorf("a certificate of another authority: %v", err)
	}
	half := kube.RotationStage{Serving: first, Next: kube.Certificates{"tls.crt": []byte("none")}, Published: now}
	switch next, _, err := r.Advance(half, now); {
	case err != nil:
		t.Errorf("an invalid next certificate: %v", err)
	case next.Next != nil:
		t.Errorf("an invalid next certificate: next.Next = %v, want nil", next.Next)
	case !bytes.Equal(next.Serving["tls.crt"], first["tls.crt"]):
		t.Errorf(`an invalid next certificate: next.Serving["tls.crt"] = %q, want %q`, next.Serving["tls.crt"], first["tls.crt"])
	}
	late := kube.RotationStage{Serving: first, Next: second, Published: now.Add(2*time.Hour - time.Second)}
	if next, _, err := r.Advance(late, now.Add(2*time.Hour)); err != nil || !bytes.Equal(next.Serving["tls.crt"], second["tls.crt"]) {
		t.Errorf("an expired leaf: %v", err)
	}
	back := kube.RotationStage{Serving: first, Previous: second["ca.crt"], Switched: now.Add(time.Hour)}
	if next, _, err := r.Advance(back, now); err != nil || next.Previous != nil {
		t.Errorf("a clock that was set back: %v", err)
	}
	for _, key := range []string{"published", "switched"} {
		if _, err := r.Parse(map[string][]byte{key: []byte("yesterday")}); err == nil {
			t.Errorf("%s: yesterday is a time", key)
		}
	}
}

// GW-08: at each step of a rotation, each side trusts the certificate of the other. This holds for
// the files of this step and of the step before, in any combination.
func TestMutualRotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &kube.Rotation{Name: "tailplane-test", Lifetime: 90 * 24 * time.Hour, PublishTime: 10 * time.Minute, RetainTime: time.Hour, Leaves: []kube.Leaf{
		{Certificate: "tls.crt", Key: "tls.key", Usage: x509.ExtKeyUsageServerAuth, Names: []string{"server.example"}},
		{Certificate: "client.crt", Key: "client.key", Usage: x509.ExtKeyUsageClientAuth, Names: []string{"client.example"}},
	}}
	var s kube.RotationStage
	issued := map[string]bool{}
	for range 60 {
		again, err := r.Parse(r.Data(s, nil))
		if err != nil {
			t.Fatal(err)
		}
		next, wake, err := r.Advance(again, now)
		if err != nil {
			t.Fatal(err)
		}
		if s.Serving != nil {
			for _, have := range []kube.RotationStage{s, next} {
				for _, trusting := range []kube.RotationStage{s, next} {
					for _, l := range r.Leaves {
						if err := verifyLeaf(trusting.Bundle(), have.Serving[l.Certificate], l.Names[0], l.Usage, now); err != nil {
							t.Fatalf("at %v: %s: %v", now, l.Names[0], err)
						}
					}
				}
			}
		}
		s = next
		issued[string(s.Serving["tls.crt"])] = true
		if wake.After(now) {
			now = wake
		}
	}
	if len(issued) < 3 {
		t.Errorf("%d certificates in all that time", len(issued))
	}
	s.Serving["client.crt"] = []byte("somebody's")
	if next, _, err := r.Advance(s, now); err != nil || bytes.Equal(next.Serving["tls.crt"], s.Serving["tls.crt"]) {
		t.Errorf("an invalid Secret stays: %v", err)
	}
}
