package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

func jobToken(id string, end time.Time) access.Token {
	return access.Token{Issuer: "https://issuer.example", ID: id, Expires: end}
}

// A token is recorded once; the same device may use it again, and no other one.
func TestUsedToken(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m, token := &corev1.ConfigMap{}, jobToken("1", now.Add(time.Hour))
	for i, tt := range []struct {
		token   access.Token
		device  string
		changed bool
		err     error
	}{
		{token, "n1", true, nil},
		{token, "n1", false, nil},
		{token, "n2", false, signin.ErrTokenUsed},
		{access.Token{Issuer: "https://other.example", ID: "1", Expires: token.Expires}, "n2", true, nil},
		{jobToken("2", token.Expires), "n2", true, nil},
	} {
		changed, err := addUsedToken(m, tt.token, tt.device, now)
		if changed != tt.changed || !errors.Is(err, tt.err) {
			t.Errorf("step %d: %v, %v; want %v, %v", i, changed, err, tt.changed, tt.err)
		}
	}
	if len(m.Data) != 3 {
		t.Errorf("%d entries, want 3", len(m.Data))
	}
	// Two hours later the ended tokens make room.
	if _, err := addUsedToken(m, jobToken("3", now.Add(3*time.Hour)), "n3", now.Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{usedTokenKey(jobToken("3", now)): fmt.Sprint(now.Add(3*time.Hour).Unix(), " n3")}
	if diff := cmp.Diff(want, m.Data); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// A record that is full or that cannot be read refuses, and one device does not fill it.
func TestUsedTokensFull(t *testing.T) {
	now := time.Now()
	end := now.Add(time.Hour)
	m := &corev1.ConfigMap{}
	for i := range maxUsedTokens {
		if _, err := addUsedToken(m, jobToken(fmt.Sprint(i), end), fmt.Sprint("n", i/maxTokensPerDevice), now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := addUsedToken(m, jobToken("x", end), "other", now); err == nil {
		t.Error("a full record takes a token")
	}
	if _, err := addUsedToken(m, jobToken("1", end), "n0", now); err != nil {
		t.Errorf("a recorded token in a full record: %v", err)
	}
	one := &corev1.ConfigMap{}
	for i := range maxTokensPerDevice {
		if _, err := addUsedToken(one, jobToken(fmt.Sprint(i), end), "n1", now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := addUsedToken(one, jobToken("x", end), "n1", now); err == nil {
		t.Error("one device fills the record")
	}
	if _, err := addUsedToken(one, jobToken("x", end), "n2", now); err != nil {
		t.Errorf("another device: %v", err)
	}
	for _, text := range []string{"", "n1", "1", "1 ", "x n1"} {
		if _, err := addUsedToken(&corev1.ConfigMap{Data: map[string]string{"a": text}}, jobToken("x", end), "n1", now); err == nil {
			t.Errorf("a record with %q takes a token", text)
		}
	}
}
