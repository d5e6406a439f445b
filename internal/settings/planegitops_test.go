package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

func TestGitOps(t *testing.T) {
	const good = "forge: github, url: https://github.com, repository: acme/fleet, branch: main, path: \"fleet/{kind}/{name}.yaml\", credentialDir: /run/secrets/x"
	const path, stacks = "path: \"fleet/{kind}/{name}.yaml\"", "stacks: [{path: a.tfvars, keys: {RunnerPool: {scaling.max: \"{name_}_max\"}}}]"
	for _, x := range []struct{ text, want string }{
		{good, ""},
		{strings.Replace(good, "forge: github", "forge: gitea", 1), "plane.gitops.forge"},
		{strings.Replace(good, "https://github.com", "http://github.com", 1), "plane.gitops.url"},
		{strings.Replace(good, "https://github.com", "https://bot:secret@github.com", 1), "plane.gitops.url"},
		{strings.Replace(good, "acme/fleet", "../fleet", 1), "plane.gitops.repository"},
		{strings.Replace(good, "acme/fleet", "fleet", 1), "plane.gitops.repository"},
		{strings.Replace(good, "acme/fleet", "acme/../fleet", 1), "plane.gitops.repository"},
		{strings.Replace(good, "branch: main", "branch: tailplane/main", 1), "plane.gitops.branch"},
		{strings.Replace(good, "fleet/{kind}", "../{kind}", 1), "plane.gitops.path"},
		{strings.Replace(good, ".yaml", ".txt", 1), "plane.gitops.path"},
		{strings.Replace(good, ", credentialDir: /run/secrets/x", "", 1), "plane.gitops.credentialDir"},
		{good + ", format: yaml", ""},
		{good + ", format: toml", "plane.gitops.format"},
		{good + ", format: tfvars", "plane.gitops.stacks"},
		{good + ", format: tfvars, " + stacks, "plane.gitops.stacks"},
		{strings.Replace(good, path, stacks, 1), "plane.gitops.stacks"},
		{strings.Replace(good, path, "format: tfvars, "+stacks, 1), ""},
		{good + ", logins: {pat@platform.dev: []}", "plane.gitops.logins"},
		{good + ", lookEvery: 1ms", "plane.gitops.lookEvery"},
		{good + ", token: x", "token"},
	} {
		f, err := settings.Parse([]byte("plane: {gitops: {" + x.text + "}}"))
		if err == nil {
			err = f.Validate(settings.PlaneRole)
		}
		said := err != nil && strings.Contains(err.Error(), "plane.gitops")
		if x.want == "" && said || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v", x.text, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret@") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}
