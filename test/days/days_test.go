// Package days walks whole days of people through the real programs: several terminals, devices, people, clusters and
// replicas. Each step checks what every other of them sees.
package days

import (
	"bufio"
	gocmp "cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/oidctest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// patience bounds each wait. The time is no assertion.
const patience = 2 * time.Minute

// A world is a tailnet with two clusters, which all days share. East is the cluster of people's settings, and west is found through it.
type world struct {
	name    string
	tailnet tailnettest.Options
	bob     string // login of bob, who has no e-mail address on Headscale

	once       sync.Once
	east, west *testenv.Env
	issuer     *oidctest.Issuer // of the OIDC tokens of jobs
	dir        string
	err        error
}

// worlds are the kinds of tailnets in which each day must pass.
var worlds = []*world{
	{name: "certificates", bob: "bob@example.com", tailnet: tailnettest.Options{EphemeralDelay: time.Hour}},
	{name: "headscale", bob: "bob", tailnet: tailnettest.Options{EphemeralDelay: time.Hour, Headscale: true, Emails: map[string]string{"alice": alice}}},
}

const alice = "alice@example.com"

// inEachWorld walks a day in each world, at the same time.
func inEachWorld(t *testing.T, day func(t *testing.T, w *world)) {
	if testing.Short() {
		t.Skip("SKIP -short: this test needs two clusters")
	}
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if w.once.Do(func() { w.err = w.start() }); w.err != nil {
				t.Fatal(w.err)
			}
			w.clear(t)
			began := time.Now()
			t.Cleanup(func() { t.Logf("the day took %v", time.Since(began).Round(100*time.Millisecond)) })
			day(t, w)
		})
	}
}

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	log.SetLogger(logr.Discard())
	code := m.Run()
	var wg sync.WaitGroup
	for _, w := range worlds {
		wg.Go(w.close)
	}
	wg.Wait()
	for _, w := range worlds {
		if w.err != nil {
			fmt.Fprintln(os.Stderr, w.err)
			code = 1
		}
	}
	os.Exit(code)
}

func (w *world) start() (err error) {
	if w.dir, err = os.MkdirTemp("", "days"); err != nil {
		return err
	}
	if w.issuer, err = oidctest.Start(); err != nil {
		return err
	}
	keys := filepath.Join(w.dir, "issuer.json")
	if err := os.WriteFile(keys, w.issuer.Keys, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	for _, at := range []struct {
		name string
		env  **testenv.Env
	}{{"east", &w.east}, {"west", &w.west}} {
		o := testenv.Options{ClusterName: at.name, Hostname: "tka-" + at.name, Beside: w.east, Tailnet: w.tailnet, Policy: w.policy(w.people(), w.people()),
			Settings: map[string]string{"api.limits": testenv.NoLimits, "signin.grantCheckInterval": "1s",
				"signin.oidc": fmt.Sprintf("{issuers: [{url: %q, keysFile: %q}]}", w.issuer.URL, keys)}}
		if *at.env, err = testenv.Start(ctx, filepath.Join(w.dir, at.name), o); err != nil {
			return fmt.Errorf("%s: %w", at.name, err)
		}
		if err := (*at.env).Cluster.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) close() {
	for _, env := range []*testenv.Env{w.west, w.east} { // east owns the tailnet
		if env != nil {
			w.err = errors.Join(w.err, env.Close())
		}
	}
	if w.issuer != nil {
		w.issuer.Close()
	}
	os.RemoveAll(w.dir)
}

// people returns the names of alice and bob in the policy.
func (w *world) people() []string { return []string{alice, w.inPolicy(w.bob)} }

func (w *world) inPolicy(login string) string {
	if !strings.Contains(login, "@") {
		return login + "@" // Headscale's form for a user without an e-mail address
	}
	return login
}

// policy returns a policy in which viewers may view, and editors may edit in the namespace shop. Jobs may edit there too.
func (w *world) policy(viewers, editors []string) string {
	return w.policyForJobs(viewers, editors, w.jobRule("acme/shop"))
}

// jobRule returns a rule for jobs of a repository that share a runner.
func (w *world) jobRule(repository string) string {
	return fmt.Sprintf(`{"name": "deploy", "role": "edit", "period": "15m", "namespaces": ["shop"], "allowTagged": true,
      "oidc": {"issuer": %q, "claims": {"repository": %q, "ref": "refs/heads/*"}}}`, w.issuer.URL, repository)
}

// policyForJobs is policy with another rule for the shared runners.
func (w *world) policyForJobs(viewers, editors []string, rule string) string {
	list := func(names []string) string { return `["` + strings.Join(names, `", "`) + `"]` }
	return `{
  "groups": {"group:viewers": ` + list(viewers) + `, "group:editors": ` + list(editors) + `},
  "tagOwners": {"tag:tailplane": ["` + alice + `"], "tag:ci": ["` + alice + `"], "tag:other": ["` + alice + `"], "tag:runner": ["` + alice + `"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},
    {"src": ["group:viewers"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h", "priority": 1}]}},
    {"src": ["group:editors"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "1h", "namespaces": ["shop"]}]}},
    {"src": ["tag:ci"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [
      {"role": "edit", "period": "15m", "namespaces": ["shop"], "allowTagged": true}]}},
    {"src": ["tag:runner"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [` + rule + `]}},
  ],
}`
}

// device adds a device of a person, or a tagged one with an empty login. Its settings have the server of east.
func (w *world) device(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	return w.deviceOf(t, w.east, host, login, tags...)
}

// deviceOf adds a device whose settings have the server of at.
func (w *world) deviceOf(t *testing.T, at *testenv.Env, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	user := login
	if w.tailnet.Headscale {
		user, _, _ = strings.Cut(login, "@")
	}
	eventually(t, "an earlier device has left: "+host, func() bool {
		return !slices.ContainsFunc(w.east.Net.Nodes(), func(n *tailcfg.Node) bool { return n.Hostinfo.Hostname() == host })
	})
	p, err := at.Person(ctx, host, user, tags...)
	for _, server := range []string{"tka-east", "tka-west"} {
		if err == nil {
			err = at.Net.WaitPeer(ctx, p.Node, server)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.east.Leave(p); os.RemoveAll(p.Home) })
	if len(tags) > 0 {
		return p // it may see no list
	}
	web := p.HTTP()
	defer web.CloseIdleConnections()
	for _, env := range []*testenv.Env{w.east, w.west} {
		eventually(t, env.Server()+" lists both clusters", func() bool {
			list, err := gossip.ListClusters.Call(ctx, httpapi.Client{HTTP: web, Base: env.Server()}, gossip.ClusterListRequest{})
			usable := slices.DeleteFunc(list.Clusters, func(c gossip.Cluster) bool { return !c.Verified || c.State != gossip.Alive })
			return err == nil && len(usable) == 2
		})
	}
	return p
}

// clear removes what people did on an earlier day, and the sign-ins that a day that failed has left.
func (w *world) clear(t *testing.T) {
	t.Helper()
	for _, env := range []*testenv.Env{w.east, w.west} {
		if _, errs, exit := kubetest.Kubectl(t.Context(), env.Cluster.Kubeconfig, "delete", "configmaps", "-n", "shop", "--all", "--wait=false"); exit != 0 {
			t.Fatal(errs)
		}
		for _, s := range stored(t, env) {
			if err := kubeClient(t, env.Cluster.AdminConfig()).Delete(t.Context(), &s); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
		}
	}
	w.becomes(t, "before the day", nil, nil)
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok() {
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// sees fails the test unless the clusters have exactly these sign-ins now.
func (w *world) sees(t *testing.T, when string, inEast, inWest []string) {
	t.Helper()
	if diff := cmp.Diff([][]string{inEast, inWest}, w.signins(t)); diff != "" {
		t.Errorf("%s, in east and west (-want +got):\n%s", when, diff)
	}
}

// becomes waits until the clusters have exactly these sign-ins.
func (w *world) becomes(t *testing.T, when string, inEast, inWest []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		diff := cmp.Diff([][]string{inEast, inWest}, w.signins(t))
		if diff == "" {
			return
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("%s, in east and west, after %v (-want +got):\n%s", when, patience, diff)
		}
	}
}

// set sets the policy, and waits until both clusters grant p exactly these roles.
func (w *world) set(t *testing.T, policy string, p *testenv.Person, want ...string) {
	t.Helper()
	if err := w.east.Net.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	web := p.HTTP()
	defer web.CloseIdleConnections()
	for _, env := range []*testenv.Env{w.east, w.west} {
		eventually(t, "the policy applies at "+env.Server(), func() bool {
			who, err := signin.GetWhoami.Call(t.Context(), httpapi.Client{HTTP: web, Base: env.Server()}, signin.WhoamiRequest{})
			var roles []string
			for _, r := range who.Rules {
				roles = append(roles, r.Role)
			}
			slices.Sort(roles)
			return err == nil && slices.Equal(roles, want)
		})
	}
}

// pass lets the end of a sign-in pass. It changes the time of the request, which the access server's account may write, so that the period
// is over now.
func (w *world) pass(t *testing.T, env *testenv.Env, device, session string) {
	t.Helper()
	kubeconfig, err := env.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-access", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stored(t, env) {
		if host, _, _ := strings.Cut(s.Spec.Device.Name, "."); host != device || !strings.HasPrefix(gocmp.Or(s.Spec.Session, "-"), session) {
			continue
		}
		patch := fmt.Appendf(nil, `{"spec":{"askedAt":%q}}`, time.Now().Add(-s.Spec.Period.Duration).UTC().Format(time.RFC3339))
		if err := kubeClient(t, config).Patch(t.Context(), &s, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s has no session %s", device, session)
}

// wants connects a device to the tailnet, or disconnects it, as a laptop that wakes up or goes to sleep.
func (w *world) wants(t *testing.T, p *testenv.Person, online bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lc, err := p.Node.LocalClient()
	if err == nil {
		_, err = lc.EditPrefs(ctx, &ipn.MaskedPrefs{Prefs: ipn.Prefs{WantRunning: online}, WantRunningSet: true})
	}
	if err == nil && online {
		err = w.east.Net.Ready(ctx, p.Node)
	}
	for _, server := range []string{"tka-east", "tka-west"} {
		if err == nil && online {
			err = w.east.Net.WaitPeer(ctx, p.Node, server)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) signins(t *testing.T) [][]string {
	t.Helper()
	return [][]string{signins(t, w.east), signins(t, w.west)}
}

// run runs a command line in a terminal of p and fails the test unless it exits with want. It returns both streams.
func run(t *testing.T, p *testenv.Person, want int, command string) string {
	t.Helper()
	words := strings.Fields(command)
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s", command, r.Exit, want, r.Both)
	}
	return r.Both
}

// shows runs a command line that succeeds, and fails the test unless a line of its output matches each pattern.
func shows(t *testing.T, p *testenv.Person, command string, patterns ...string) {
	t.Helper()
	matches(t, command, run(t, p, 0, command), patterns...)
}

func matches(t *testing.T, what, out string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile("(?m)" + pattern).MatchString(out) {
			t.Errorf("%s: no line matches %s\n%s", what, pattern, out)
		}
	}
}

// A terminal is a shell of a person that stays open.
type terminal struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// open opens a terminal of p that runs a program, which must read commands as a POSIX shell does.
func open(t *testing.T, p *testenv.Person, program ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, cmd: exec.CommandContext(t.Context(), filepath.Join(p.Bin(), program[0]), program[1:]...)}
	term.cmd.Env, term.cmd.Dir = p.Env(), p.Home
	var err error
	if term.in, err = term.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	term.cmd.Stdout, term.cmd.Stderr, term.out = w, w, bufio.NewReader(out)
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { term.in.Close(); term.cmd.Process.Kill(); term.cmd.Wait(); out.Close() })
	return term
}

// do runs a command line in the terminal, fails the test unless it exits with want, and returns what the terminal showed since the
// command before.
func (term *terminal) do(want int, command string) string {
	term.t.Helper()
	const done = "=== done "
	fmt.Fprintf(term.in, "%s </dev/null; echo '%s'$?\n", command, done)
	var shown strings.Builder
	for {
		line, err := term.out.ReadString('\n')
		if err != nil {
			term.t.Fatalf("%s: the terminal ended: %v\n%s%s", command, err, shown.String(), line)
		}
		before, code, found := strings.Cut(line, done)
		shown.WriteString(before)
		if !found {
			continue
		}
		if strings.TrimSpace(code) != fmt.Sprint(want) {
			term.t.Fatalf("%s: exit %s, want %d\n%s", command, strings.TrimSpace(code), want, shown.String())
		}
		return shown.String()
	}
}

// exit closes the terminal and returns what it showed at the end.
func (term *terminal) exit() string {
	term.t.Helper()
	term.in.Close()
	rest, err := io.ReadAll(term.out)
	if err == nil {
		err = term.cmd.Wait()
	}
	if err != nil {
		term.t.Fatalf("the terminal ended with %v\n%s", err, rest)
	}
	return string(rest)
}

// stored returns the sign-ins of a cluster.
func stored(t *testing.T, env *testenv.Env) []v1alpha1.TkaSignin {
	t.Helper()
	var list v1alpha1.TkaSigninList
	if err := kubeClient(t, env.Cluster.AdminConfig()).List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func kubeClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// row returns a sign-in as "LOGIN DEVICE SESSION ROLE". The default session is "-", and each session of a shell is "shell".
func row(login, device, session, role string) string {
	return strings.Join([]string{login, device, session, role}, " ")
}

// signins returns the sign-ins of a cluster in the form of [row], sorted. One that is not ready has its phase instead of the role.
func signins(t *testing.T, env *testenv.Env) (out []string) {
	t.Helper()
	for _, s := range stored(t, env) {
		host, _, _ := strings.Cut(s.Spec.Device.Name, ".")
		session, role := gocmp.Or(s.Spec.Session, "-"), s.Status.Role
		if strings.HasPrefix(session, "shell-") {
			session = "shell"
		}
		if s.Status.Phase != "Ready" {
			role = string(s.Status.Phase)
		}
		out = append(out, row(s.Spec.User.Login, host, session, role))
	}
	slices.Sort(out)
	return out
}
