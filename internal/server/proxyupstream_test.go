package server

import (
	"testing"

	"k8s.io/client-go/rest"
)

// The access proxy verifies the API server: with the CA of its client configuration, and without one with the roots of the system.
func TestProxyUpstream(t *testing.T) {
	for _, tt := range []struct {
		why string
		tls rest.TLSClientConfig
		ok  bool
	}{
		{"a public certificate", rest.TLSClientConfig{}, true},
		{"a CA without a certificate", rest.TLSClientConfig{CAData: []byte("none")}, false},
		{"not verified", rest.TLSClientConfig{Insecure: true}, false},
	} {
		_, err := proxyUpstream(&rest.Config{Host: "https://k8s.example.com", TLSClientConfig: tt.tls})
		if got := err == nil; got != tt.ok {
			t.Errorf("%s: %v", tt.why, err)
		}
	}
}
