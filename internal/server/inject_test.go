package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sidecar file is parsed strictly: a wrong guess would be in every pod.
func TestSidecarOptions(t *testing.T) {
	const digest = "image: registry.invalid/mca@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
	for _, tt := range []struct{ why, text, says string }{
		{"enough", digest, ""},
		{"all of it", digest + "imagePullPolicy: Always\nlogLevel: debug\nport: 7443\nresources: {requests: {cpu: 1m}, limits: {memory: 1Gi}}\n", ""},
		{"no image", "logLevel: info\n", "missing"},
		{"nothing", "", "missing"},
		{"unknown", digest + "imgae: x\n", "imgae"},
		{"unknown below", digest + "resources: {requests: {gpu: 1}}\n", "gpu"},
		{"two documents", digest + "---\n" + digest, "more than one"},
		{"an image that moves", "image: registry.invalid/mca:latest\n", "latest"},
	} {
		path := filepath.Join(t.TempDir(), "sidecar.yaml")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := sidecarOptions(path)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.why, err, tt.says)
		}
		if err == nil && (o.Sidecar.Port == 0 || o.Version == "") {
			t.Errorf("%s: %+v", tt.why, o)
		}
	}
	if _, err := sidecarOptions(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "--sidecar") {
		t.Error(err)
	}
	if _, err := clientAuthentication(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file of authorities, and no error")
	}
}

// A configuration is checked as adapters read it, and against the previous one.
func TestCheckConfig(t *testing.T) {
	const good = "apiVersion: mca.tailplane.dev/v1alpha1\nkind: Config\nhome: here\nclusters:\n- {name: here, slot: 0, inCluster: true}\n"
	for _, tt := range []struct {
		why, doc, previous string
		wrong              bool
	}{
		{"good", good, "", false},
		{"good after good", good, good, false},
		{"good after a rejected setting", good, "x: y\n", false},
		{"unknown field", good + "x: y\n", "", true},
		{"not YAML", "{", "", true},
		{"empty", "", good, true},
	} {
		var previous []byte
		if tt.previous != "" {
			previous = []byte(tt.previous)
		}
		if wrong, _ := checkConfig([]byte(tt.doc), previous); (len(wrong) > 0) != tt.wrong {
			t.Errorf("%s: %q", tt.why, wrong)
		}
	}
}
