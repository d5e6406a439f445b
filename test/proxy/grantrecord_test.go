package proxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// PRX-12: a rule of the tailnet policy with a record requires recordings without any setting of the proxy, and its sign-ins get no token,
// because a token goes past the recording. Where a rule gets a record later, the sign-ins that may have been given a token end. Other people
// are not affected.
func TestPRX12_RecordOfAGrant(t *testing.T) {
	r := start(t)
	runApp(t, r)
	dave, erin := person(t, r, "dave-laptop", "dave@example.com", "edit"), person(t, r, "erin-laptop", "erin@example.com", "edit")
	for _, p := range []*testenv.Person{dave, erin} {
		run(t, p, 0, "tka", "login", "--role", "edit", "--session", "edit")
	}
	kubectlAs(t, dave, 0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	kubectlAs(t, dave, 0, nil, "exec", "app", "--", "echo", "required by the grant")
	kubectlAs(t, erin, 0, nil, "exec", "app", "--", "echo", "not required")
	files, err := filepath.Glob(filepath.Join(system.dir, "recordings", "*.cast"))
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]bool{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(b), "\n")
		h, err := recording.ParseHeader([]byte(head))
		if err != nil {
			t.Fatal(err)
		}
		recorded[h.Command] = true
	}
	if !recorded["echo required by the grant"] || recorded["echo not required"] {
		t.Errorf("the recorded commands are %v", recorded)
	}
	for command, want := range map[string]string{"status": "records exec", "status -o json": `"record": [`, "why": "records exec", "why -o json": `"record": [`, "doctor": "records exec"} {
		for p, want := range map[*testenv.Person]string{dave: want, erin: ""} {
			got, err := p.Run(t.Context(), "tka", append(strings.Fields(command), "--context", "tka-east-edit")...) // doctor may warn
			if err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(got.Both, "records exec") || strings.Contains(got.Both, `"record": [`); has != (want != "") {
				t.Errorf("tka %s of %s: %s, want %q", command, p.Home, got.Both, want)
			}
		}
	}
	token := func(p *testenv.Person) testenv.Result {
		t.Helper()
		got, err := p.Run(t.Context(), "tka", "kubeconfig", "--mode", "token", "--token", "--session", "edit")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := token(dave); got.Exit == 0 || !strings.Contains(got.Stderr, "there is no token") {
		t.Errorf("a token for dave: exit %d %s", got.Exit, got.Stderr)
	}
	signins := func() string {
		out, errs, exit := kubetest.Kubectl(t.Context(), r.Cluster.Kubeconfig, "get", "tkasignins", "-n", testenv.SigninNamespace, "-o", "jsonpath={range .items[*]}{.spec.user.login} {.spec.record}{\"\\n\"}{end}")
		if exit != 0 {
			t.Fatal(errs)
		}
		return out
	}
	if got := signins(); !strings.Contains(got, `dave@example.com ["exec"]`) {
		t.Errorf("the sign-ins are %s", got)
	}
	t.Cleanup(func() {
		if err := r.Net.SetPolicy(policy); err != nil {
			t.Error(err)
		}
	})
	const before, after = `[{"role": "edit", "period": "1h"}]}},
  ],`, `[{"role": "edit", "period": "1h", "record": ["exec"]}]}},
  ],`
	changed := strings.Replace(policy, before, after, 1)
	if changed == policy {
		t.Fatal("the policy has no rule of erin")
	}
	if err := r.Net.SetPolicy(changed); err != nil {
		t.Fatal(err)
	}
	until(t, signins, func() bool { return !strings.Contains(signins(), "erin@example.com") })
	if got := signins(); !strings.Contains(got, "dave@example.com") {
		t.Errorf("dave's sign-in has ended too: %s", got)
	}
}
