package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
)

// For any KUBERNETES_EXEC_INFO, execCredentialVersion returns the requested version if tka supports it, or an error that gives the reason
// in one line.
func FuzzExecInfo(f *testing.F) {
	for _, seed := range []string{
		"", " ", "null", "{}", "[]", `"client.authentication.k8s.io/v1"`, "\xff", "{", `{"apiVersion":1}`,
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}`,
		`{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","spec":{"interactive":true,"cluster":{"server":"https://k8s.example","certificate-authority-data":"eA==","config":{"a":[1]}}}}`,
		`{"apiVersion":"client.authentication.k8s.io/v1alpha1","kind":"ExecCredential"}`,
		`{"apiVersion":"client.authentication.k8s.io/v1","APIVERSION":"client.authentication.k8s.io/v2"}`,
		`{"apiVersion":"client.authentication.k8s.io/v1","apiVersion":"x"}`,
		`{"apiVersion":"client.authentication.k8s.io/v1"} {}`,
		`{"apiVersion":"\u001b[31mred\n","kind":"ExecCredential"}`,
		`{"apiVersion":"` + strings.Repeat("v", 5000) + `"}`,
		strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, env string) {
		version, err := execCredentialVersion(env)
		if err != nil {
			switch text := err.Error(); {
			case version != "":
				t.Errorf("version = %q, want none; %q", version, env)
			case text == "":
				t.Errorf("text is empty; %q, version = %q, %d, text = %.300q", env, version, len(text), text)
			case len(text) > 1000:
				t.Errorf("len(text) = %v, want at most 1000; %q", len(text), env)
			}
			return
		}
		if env == "" {
			if version != kubeconfig.ExecVersion {
				t.Errorf("the default is %q", version)
			}
			return
		}
		var info map[string]any
		if err := json.Unmarshal([]byte(env), &info); err != nil {
			t.Fatalf("accepted input that is not a JSON object: %q", env)
		}
		if version != kubeconfig.ExecVersion && version != "client.authentication.k8s.io/v1beta1" || !strings.Contains(env, "lient.authentication") && !strings.Contains(env, `\u`) {
			t.Errorf("%q gives %q", env, version)
		}
	})
}
