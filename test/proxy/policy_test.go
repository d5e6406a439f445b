package proxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// setPolicy writes rules into the settings file of the running proxy, and waits until it has read them.
func setPolicy(t *testing.T, r *testenv.Env, rules, logged string) {
	t.Helper()
	file := filepath.Join(r.Dir, "proxy", "config.yaml")
	text, err := r.Settings("proxy")
	if err != nil {
		t.Fatal(err)
	}
	if rules != "" {
		rules = "policy:\n  rules:\n" + rules
	}
	before := strings.Count(r.Proxy.Output(), logged)
	// A ConfigMap is replaced in one step too.
	if err := os.WriteFile(file+".new", []byte(string(text)+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return logged + ": " + r.Proxy.Output() }, func() bool { return strings.Count(r.Proxy.Output(), logged) > before })
}

const (
	policyChanged = `"the policy of the access proxy has changed"`
	policyKept    = `the last good policy of the access proxy stays in force`
)

// PRX-14: a running proxy takes new rules, keeps the last good ones if the file is not valid, and cuts the streams that
// new rules refuse. Other sessions and other people are judged by the same rules.
func TestPRX14_SettingsAreWatched(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "alice-rules", "alice@example.com"), person(t, r, "bob-rules", "bob@example.com")
	for _, p := range []*testenv.Person{alice, bob} {
		run(t, p, 0, "tka", "login")
	}
	watch := begin(t, alice, "default", nil, "get", "configmaps", "-A", "-w")
	until(t, watch.String, func() bool { return strings.Contains(watch.String(), "kube-root-ca.crt") })
	setPolicy(t, r, `  - name: alice-reads-no-configmaps
    when: request.resourceAttributes.resource == "configmaps" && caller.login == "alice@example.com"
    deny: Ask the platform team for configuration.
  - name: namespaces
    when: request.resourceAttributes.resource == "namespaces"
    warn: Namespaces are not yours.
`, policyChanged)
	<-watch.ended
	if !strings.Contains(watch.String(), "the policy of the access proxy has changed: Ask the platform team for configuration") {
		t.Errorf("the watch ended with: %s", watch)
	}
	denied := func() {
		t.Helper()
		if got := kubectl(t, alice, 1, "get", "configmaps"); !strings.Contains(got.Stderr, "Ask the platform team for configuration.") {
			t.Errorf("alice: %s", got.Stderr)
		}
		kubectl(t, bob, 0, "get", "configmaps")
	}
	denied()
	if got := kubectl(t, alice, 0, "get", "namespaces"); !strings.Contains(got.Stderr, "Warning: Namespaces are not yours.") {
		t.Errorf("a warning: %s", got.Both)
	}
	setPolicy(t, r, "  - {name: broken, when: 'nonsense ==', deny: No.}\n", policyKept)
	denied()
	setPolicy(t, r, "", policyChanged)
	kubectl(t, alice, 0, "get", "configmaps")
}
