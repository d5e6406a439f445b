package output

import (
	"testing"
)

func TestSuggest(t *testing.T) {
	names := []string{"login", "logout", "status", "kubeconfig", "config"}
	for in, want := range map[string]string{"lgoin": "login", "logut": "logout", "stat": "status", "kubeconf": "kubeconfig", "xyzzy": "", "": "", "confg": "config"} {
		if got := Suggest(in, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
