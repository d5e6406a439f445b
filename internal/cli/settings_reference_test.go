package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/cli/config"
)

// exampleSettings has every setting.
const exampleSettings = `server: tka
cluster: prod-eu
port: 443
prefix: tka-
output: table
credentialCache: auto
plane.url: https://dashboard.tail1234.ts.net
recorder.url: https://recorder.tail1234.ts.net
servers:
- name: lab
  url: http://tka-lab.tail1234.ts.net
  key: ed25519:42N5lbEXvk7n6MM1gYOj6iOHSvGDCwmwwxqbFw5Md2E
- name: attic
  url: http://tka-attic.tail1234.ts.net
  insecureHTTP: true
`

// environment lists the environment variables that tka reads to find its way, and not to format output or to run a shell.
func environment() [][2]string {
	return [][2]string{
		{serverEnv, "the access server, like `--server`"},
		{serverKeyEnv, "the key that this server must prove, like `--server-key`"},
		{clusterEnv, "the cluster, like `--cluster`; `tka shell` and the shell's function set it"},
		{sessionEnv, "the session, like `--session`; `tka shell` and the shell's function set it"},
		{"KUBECONFIG", "the kubeconfig files, as for kubectl"},
		{"KUBERC", "kubectl's own settings, which `tka doctor` reads"},
		{"XDG_CONFIG_HOME", "directory of `tka/config.yaml`"},
		{"XDG_STATE_HOME", "directory of `tka/servers.yaml`, in which tka stores servers and their keys"},
		{"XDG_RUNTIME_DIR", "directory of cached tokens and of the files of shells, in memory on most systems"},
		{"XDG_CACHE_HOME", "directory of cached tokens if `XDG_RUNTIME_DIR` is not set"},
		{"HTTPS_PROXY", "the proxy, also `HTTP_PROXY` and `NO_PROXY`; it never gets names or addresses of the tailnet"},
		{"TS_SOCKET", "the socket of Tailscale's daemon, if it is not the usual one"},
		{"DASHBOARD_TOKEN", "a token for the operator plane, if the connection does not identify you"},
	}
}

func settingsPage() string {
	var b strings.Builder
	b.WriteString(`# The settings of tka

<!-- Generated from the settings; do not edit. -->

` + "`tka` works without settings. Its settings file is `config.yaml` in the directory `tka` of `$XDG_CONFIG_HOME`, else of `~/.config`; on macOS in" + `
` + "`~/Library/Application Support/tka`, on Windows in `%AppData%\\tka`. If `settings.yaml` exists there, or if `config.yaml` belongs to the tka of" + `
` + "SpechtLabs, the file is `settings.yaml`. `--config FILE` selects another file. `tka config` shows all settings, `tka config KEY VALUE` changes one." + `

An unknown key, a duplicate key or a value of the wrong form is an error that names its line. A flag wins over an environment variable, and a
variable over the file.

` + "```yaml\n" + exampleSettings + "```" + `

## Settings

| key | default | meaning |
|---|---|---|
`)
	defaults, err := config.Parse(nil)
	if err != nil {
		panic(err)
	}
	for _, s := range config.AllSettings() {
		value := s.Get(&defaults)
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, value, s.Doc)
	}
	b.WriteString("\n## Settings of one server\n\n`servers` is a list. The key of one of these settings for `tka config` is `servers.NAME.KEY`.\n\n| key | meaning |\n|---|---|\n")
	for _, s := range config.AllServerSettings() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, s.Doc)
	}
	b.WriteString("\nA server with `key` may have an `http://` URL without `insecureHTTP`, because it must prove the key before tka sends it anything. Without a\n" +
		"key, tka uses an `http://` server on another machine only if this machine's Tailscale confirms its address.\n" +
		"\n## Environment variables\n\n| variable | meaning |\n|---|---|\n")
	for _, v := range environment() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", v[0], v[1])
	}
	return b.String()
}

// The page on the settings matches the code, and its example is a valid file with every setting.
func TestReferenceOfSettings(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "settings-tka.md")
	want := settingsPage()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("write it with: go test ./internal/cli -run Reference -update (-want +got):\n%s", diff)
	}
	if _, err := config.Parse([]byte(exampleSettings)); err != nil {
		t.Errorf("the example: %v", err)
	}
	for _, key := range append(config.SettingNames(), "key", "url", "name", "insecureHTTP") {
		if !strings.Contains("\n"+exampleSettings, "\n"+key+": ") && !strings.Contains(exampleSettings, " "+key+": ") {
			t.Errorf("the example has no %s", key)
		}
	}
}

// Every variable that the code reads is on the page, or is one of other programs' that only affects output or shells.
func TestReferenceOfVariables(t *testing.T) {
	known := []string{"KUBERNETES_EXEC_INFO", "CLICOLOR_FORCE", "NO_COLOR", "TERM", "SHELL", "COMSPEC", "PS1", "ZDOTDIR", "NO_PROXY", "no_proxy"}
	for _, v := range environment() {
		known = append(known, v[0])
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`(?:Getenv|xdgPath)\("([A-Za-z_]+)"`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range read.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s reads $%s, which the page on the settings does not have", file, m[1])
			}
		}
	}
}
