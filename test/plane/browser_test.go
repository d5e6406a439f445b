package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TB-10: a browser shows two people different data at the same address, which is reachable only on the tailnet. It
// sends no request to any other address.
func TestTB10_Browser(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("SKIP browser: there is no Node. Run: make browser")
	}
	if _, err := os.Stat(filepath.Join("../../web/node_modules", "playwright-core")); err != nil {
		t.Skip("SKIP browser: web/node_modules has no playwright-core. Run: make browser")
	}
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && chromium == "" {
			chromium = path
		}
	}
	if chromium == "" {
		t.Skip("SKIP browser: there is no Chromium. Run: make browser")
	}
	r := start(t)
	alice, mallory := person(t, r, "alice-browser", "alice@example.com"), person(t, r, "mallory-browser", "mallory@example.com")
	people, err := json.Marshal([][2]string{{"alice@example.com", alice.Proxy}, {"mallory@example.com", mallory.Proxy}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "browser.mjs")
	cmd.Env = append(os.Environ(), "DASHBOARD="+r.Dashboard(), "CHROMIUM="+chromium, "PEOPLE="+string(people))
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("the browser: %v\n%s%s", err, &out, &errs)
	}
	type view struct {
		Who, Title, Text string
		Status, Scripts  int
		Asked            []string
	}
	var saw []view
	for d := json.NewDecoder(&out); d.More(); {
		var v view
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		saw = append(saw, v)
	}
	if len(saw) != 2 {
		t.Fatalf("the browser saw %+v", saw)
	}
	for _, v := range saw {
		if !slices.Equal(v.Asked, []string{r.Dashboard()}) {
			t.Errorf("as %s it requested %v", v.Who, v.Asked)
		}
	}
	switch v := saw[0]; {
	case v.Status != 200:
		t.Errorf("alice: v.Status = %v, want 200", v.Status)
	case v.Scripts == 0:
		t.Errorf("alice: v.Scripts = %v", v.Scripts)
	case !strings.Contains(v.Text, "alice@example.com"):
		t.Errorf("alice: v.Text = %q does not contain %q", v.Text, "alice@example.com")
	case strings.Contains(v.Text, "mallory@"):
		t.Errorf("alice: v.Text = %q contains %q", v.Text, "mallory@")
	}
	switch v := saw[1]; {
	case v.Status != 403:
		t.Errorf("mallory: v.Status = %v, want 403", v.Status)
	case v.Scripts != 0:
		t.Errorf("mallory: v.Scripts = %v, want 0", v.Scripts)
	case !strings.Contains(v.Text, "You have no role here"):
		t.Errorf("mallory: v.Text = %q does not contain %q", v.Text, "You have no role here")
	case !strings.Contains(v.Text, "mallory@example.com"):
		t.Errorf("mallory: v.Text = %q does not contain %q", v.Text, "mallory@example.com")
	case strings.Contains(v.Text, "alice@"):
		t.Errorf("mallory: v.Text = %q contains %q", v.Text, "alice@")
	}
}
