// Command demo shows Tailplane on this machine: a tailnet, a cluster, and people who are admitted, refused and signed
// out. The demo checks every claim that it prints. The exit code is 1 if one was false.
//
// With a terminal it stays up until Ctrl-C. With DEMO_EXIT=1, or without a terminal, it ends after the last claim.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	stay := os.Getenv("DEMO_EXIT") == "" && isTerminal(os.Stdin) && isTerminal(os.Stdout)
	if err := run(ctx, stay); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		stop()
		os.Exit(1)
	}
}

func isTerminal(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0 && i.Name() != "null"
}

// run runs the demo, and cleans up afterwards.
func run(ctx context.Context, stay bool) (err error) {
	tailnettest.Quiet()
	dir, err := os.MkdirTemp("", "tailplane-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &show{dir: dir, began: time.Now(), color: stay && os.Getenv("NO_COLOR") == ""}
	defer func() {
		for _, end := range slices.Backward(s.ends) {
			if eerr := end(); eerr != nil {
				err = errors.Join(err, fmt.Errorf("clean up: %w", eerr))
			}
		}
		for _, site := range s.sites {
			if cerr := site.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
			}
		}
		if s.env != nil {
			if cerr := s.env.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
			}
		}
	}()
	for i, chapter := range []struct {
		title string
		show  func(context.Context) error
	}{
		{"A tailnet, a cluster, and Tailplane between them", s.setUp},
		{"alice signs in", s.alice},
		{"bob, a tagged node and the public internet are refused", s.refused},
		{"The grant moves from alice to bob while both are online", s.moved},
		{"bob signs out", s.signedOut},
		{"A shell signs in, and signs out at its end", s.shell},
		{"kubectl through the access proxy, with no credential on the device", s.proxy},
		{"Two more clusters find each other without configuration", s.clusters},
		{"One Kubernetes API for two clusters, with an unmodified kubectl", s.adapter},
		{"The dashboard for operators", s.plane},
		{"CI runners for two organisations", s.fleet},
	} {
		s.title(i+1, chapter.title)
		at := time.Now()
		if err := chapter.show(ctx); err != nil {
			return err
		}
		s.times = append(s.times, fmt.Sprintf("%d: %.1f s", i+1, time.Since(at).Seconds()))
	}
	fmt.Printf("\nDone in %.1f s (%s).\n", time.Since(s.began).Seconds(), strings.Join(s.times, ", "))
	if len(s.untrue) > 0 {
		return fmt.Errorf("%d claims were not true:\n  %s", len(s.untrue), strings.Join(s.untrue, "\n  "))
	}
	fmt.Println("The demo checked every claim above: all are true.")
	if stay {
		return s.stay(ctx)
	}
	return nil
}

// show is the state of the demo.
type show struct {
	dir     string
	env     *testenv.Env
	sites   []*testenv.Env // west and north, once they are up
	ends    []func() error
	people  map[string]*testenv.Person
	began   time.Time
	times   []string
	untrue  []string
	color   bool
	lastOut testenv.Result
}

// The tailnet policy, in Tailscale's own syntax. The grants name GROUP.
const policy = `// The tailnet policy of the demo. You can edit it while the demo runs: each write takes effect at once.
{
  "groups": {"group:platform": [%s]},
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:ci": ["autogroup:admin"]},
  "grants": [
    // Every device may connect to the sign-in server. This alone does not allow a sign-in.
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    // Only the servers of the clusters may connect to each other on this port.
    {"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},
    // Members of the group may view everything, and edit in the namespace "shop".
    {"src": ["group:platform"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [
      {"role": "view", "period": "8h", "priority": 1},
      {"role": "edit", "period": "1h", "namespaces": ["shop"]},
    ]}},
    // alice may view everything on the operator plane, and end sign-ins.
    {"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "operator", "orgs": ["*"]}]}},
  ],
}
`

func (s *show) policyFile() string { return filepath.Join(s.dir, "policy.hujson") }

// grant sets the members of the group.
func (s *show) grant(logins ...string) error {
	for i, l := range logins {
		logins[i] = fmt.Sprintf("%q", l)
	}
	next := s.policyFile() + ".new"
	if err := os.WriteFile(next, fmt.Appendf(nil, policy, strings.Join(logins, ", ")), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.policyFile())
}

const (
	alice = "alice@example.com"
	bob   = "bob@example.com"
)

func (s *show) setUp(ctx context.Context) error {
	if err := s.grant(alice); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var err error
	s.env, err = testenv.Start(limit, s.dir, testenv.Options{PolicyFile: s.policyFile(), Settings: map[string]string{"access.modes": "[token, proxy]"}, Progress: func(what string) { s.note("starting %s", what) }})
	if err != nil {
		return err
	}
	s.people = map[string]*testenv.Person{}
	for _, p := range []struct{ host, login, tag string }{{"alice", alice, ""}, {"bob", bob, ""}, {"ci", "", "tag:ci"}} {
		var tags []string
		if p.tag != "" {
			tags = []string{p.tag}
		}
		if s.people[p.host], err = s.env.Person(limit, p.host+"-laptop", p.login, tags...); err != nil {
			return err
		}
	}
	shop := "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: prices, namespace: shop}\ndata: {tea: \"3\"}\n"
	if err := s.env.Cluster.Apply(limit, []byte(shop)); err != nil {
		return err
	}
	s.note("joined: the devices of %s and %s, and a device with the tag tag:ci", alice, bob)
	s.note("policy %s, Kubernetes %s", s.policyFile(), s.env.Cluster.Version)
	return nil
}

func (s *show) alice(ctx context.Context) error {
	s.note("Her grant: view in the whole cluster for 8h, and edit in the namespace shop for 1h.")
	return s.steps(ctx, "alice",
		step{says: "tka knows the sign-in server", run: "tka config server tka." + s.env.Net.Suffix()},
		step{says: "she is signed in", run: "tka login --use", wants: []string{"view"}},
		step{says: "her kubeconfig has no token", check: s.noTokenOnDisk},
		step{says: "kubectl gets a token from a plugin when it needs one", run: "kubectl config view --minify -o jsonpath={.users[0].user.exec}", wants: []string{"tka", "credential"}},
		step{says: "she can read with the role view", run: "kubectl get configmaps -n shop", wants: []string{"prices"}},
		step{says: "the cluster sees her as an ephemeral ServiceAccount", run: "kubectl auth whoami", wants: []string{"system:serviceaccount:tailplane-signins:alice-example-com-"}},
		step{says: "she cannot write with the role view", run: "kubectl create configmap notes -n shop", exit: 1, wants: []string{"forbidden"}},
		step{says: "in another terminal she takes the role edit for one command: that terminal is elevated alone", run: "tka shell --role edit --for 30m -- kubectl create configmap notes -n shop", wants: []string{"created", "Signed out"}},
		step{says: "her first terminal still has the role view", run: "kubectl create configmap more -n shop", exit: 1, wants: []string{"forbidden"}},
		step{says: "while such a terminal is open, tka lists both sign-ins", run: "tka shell --role edit -- tka status", wants: []string{"shell-", "this terminal", "view"}},
		step{says: "she cannot write in other namespaces", run: "tka shell --role edit -- kubectl create configmap notes -n default", exit: 1, wants: []string{"forbidden"}},
		step{says: "tka names the least of her roles that allows it", run: "tka why create configmaps -n shop", exit: 3, wants: []string{"Your role edit allows it"}},
		step{says: "none of her roles allows it elsewhere, and tka says what to ask for", run: "tka why create configmaps -n default", exit: 3, wants: []string{"Ask for a grant"}},
		step{says: "tka shows her identity on the server, and the reason for its decision", run: "tka why", wants: []string{alice, "edit", "view"}},
		step{says: "an administrator can watch and delete the sign-in as an object", admin: true, run: "kubectl get tkasignins -n tailplane-signins", wants: []string{alice, "Ready"}},
	)
}

func (s *show) refused(ctx context.Context) error {
	before, err := s.count(ctx)
	if err != nil {
		return err
	}
	if err := s.steps(ctx, "bob",
		step{says: "he sees the reason, and what to request", run: "tka login", exit: 3, wants: []string{bob, "grant"}},
		step{says: "he sees the same without a sign-in attempt", run: "tka why", exit: 3, wants: []string{bob}},
	); err != nil {
		return err
	}
	if err := s.steps(ctx, "ci", step{says: "a tagged node is not a person", run: "tka login", exit: 3, wants: []string{"tag:ci"}}); err != nil {
		return err
	}
	status, body, err := s.funnel(ctx)
	if err != nil {
		return err
	}
	s.command("the internet", "curl -X POST %s/api/v1alpha1/login   (through Tailscale Funnel)", s.env.Server())
	s.output(fmt.Sprintf("HTTP %d %s", status, body))
	s.claim(status == http.StatusForbidden && strings.Contains(body, "funnel_refused"), "the server refuses a Funnel request before it identifies the caller")
	after, err := s.count(ctx)
	if err != nil {
		return err
	}
	s.claim(before == after, "no refused request caused a write: %d sign-in before, %d after", before, after)
	return nil
}

// funnel sends the request that a serve hop forwards from Funnel. The access server itself listens only on the
// tailnet.
func (s *show) funnel(ctx context.Context) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.env.Server()+"/api/v1alpha1/login", nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Tailscale-Funnel-Request", "?1")
	res, err := s.people["alice"].HTTP().Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	return res.StatusCode, strings.TrimSpace(string(b)), err
}

func (s *show) moved(ctx context.Context) error {
	if err := s.grant(bob); err != nil {
		return err
	}
	s.note("new members of the group in the policy file: %s", bob)
	at := time.Now()
	if err := s.until(ctx, "bob", "tka login --use", 0); err != nil {
		return err
	}
	s.note("%.1f s after the change of the file:", time.Since(at).Seconds())
	s.command("bob", "tka login --use")
	s.output(s.lastOut.Both)
	s.claim(s.lastOut.Exit == 0, "bob is signed in")
	if err := s.until(ctx, "alice", "kubectl get configmaps -n shop", 1); err != nil {
		return err
	}
	s.command("alice", "kubectl get configmaps -n shop")
	s.output(s.lastOut.Both)
	s.claim(s.lastOut.Exit == 1, "alice's access ended %.1f s after the change of the file", time.Since(at).Seconds())
	return s.steps(ctx, "alice",
		step{says: "she cannot sign in again", run: "tka login", exit: 3, wants: []string{alice}},
		step{says: "only bob's sign-in remains", admin: true, run: "kubectl get tkasignins -n tailplane-signins", wants: []string{bob}, lacks: []string{alice}},
	)
}

func (s *show) signedOut(ctx context.Context) error {
	held := filepath.Join(s.people["bob"].Home, "held")
	if err := s.steps(ctx, "bob",
		step{says: "bob saves a token, to test it after the sign-out", run: "tka kubeconfig --token --out " + held},
		step{says: "the token works", run: "kubectl get configmaps -n shop --kubeconfig " + held, wants: []string{"prices"}},
		step{says: "bob is signed out", run: "tka logout"},
	); err != nil {
		return err
	}
	out := time.Now()
	if err := s.steps(ctx, "bob", step{says: "the saved token loses its rights at once", run: "kubectl get configmaps -n shop --kubeconfig " + held, exit: 1, wants: []string{"orbidden"}}); err != nil {
		return err
	}
	s.note("The API server caches the authentication of a token for 10 s. After that it rejects the token:")
	for {
		r, err := s.people["bob"].Run(ctx, "kubectl", "get", "configmaps", "-n", "shop", "--kubeconfig", held)
		if err != nil {
			return err
		}
		if strings.Contains(r.Stderr, "nauthorized") || strings.Contains(r.Stderr, "must be logged in") || strings.Contains(r.Stderr, "provide credentials") {
			break
		}
		if time.Since(out) > 30*time.Second {
			break
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	took := time.Since(out)
	s.claim(took < 13*time.Second, "the API server rejects the token %.1f s after the sign-out", took.Seconds())
	n, err := s.count(ctx)
	if err != nil {
		return err
	}
	s.claim(n == 0, "no sign-in remains: %d sign-ins", n)
	return s.steps(ctx, "admin",
		step{says: "no ServiceAccount remains, except the default one", admin: true, run: "kubectl get serviceaccounts -n tailplane-signins -o name", lacks: []string{"example-com"}},
		step{says: "no binding remains", admin: true, run: "kubectl get clusterrolebindings,rolebindings -A -l app.kubernetes.io/managed-by=tailplane -o name", lacks: []string{"example-com"}},
	)
}

func (s *show) shell(ctx context.Context) error {
	if err := s.steps(ctx, "bob",
		step{says: "the command ran with the access of a separate sign-in", run: "tka shell -- kubectl get configmaps -n shop", wants: []string{"prices"}},
		step{says: "tka exits with the exit code of the command", run: "tka shell -- kubectl auth can-i delete nodes", exit: 1, wants: []string{"no"}},
	); err != nil {
		return err
	}
	n, err := s.count(ctx)
	if err != nil {
		return err
	}
	s.claim(n == 0, "each shell ended its sign-in: %d sign-ins remain", n)
	return nil
}

func (s *show) clusters(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	names := []string{"west", "north"}
	s.note("starting the clusters west and north on the same tailnet, each with a separate Tailplane")
	sites, errs := make([]*testenv.Env, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			sites[i], errs[i] = testenv.Start(limit, filepath.Join(s.dir, name), testenv.Options{Beside: s.env, ClusterName: name, Hostname: "tka-" + name})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.sites = sites
	if err := s.grant(alice); err != nil {
		return err
	}
	if err := s.shows(ctx, "alice", "tka clusters", 40*time.Second, met,
		"the server that alice uses lists all three clusters"); err != nil {
		return err
	}
	if err := s.steps(ctx, "alice",
		step{says: "she signs in to another cluster by its name", run: "tka login --cluster west --use", wants: []string{"west"}},
		step{says: "the API server of west answers", run: "kubectl auth whoami", wants: []string{"alice-example-com-"}},
		step{says: "she signs in to all clusters", run: "tka login --all", wants: []string{"east", "west", "north"}},
	); err != nil {
		return err
	}
	north := s.sites[1]
	s.note("the demo kills north's access server")
	north.Access.Kill()
	if err := s.shows(ctx, "alice", "tka clusters --all", 40*time.Second, func(out string) bool { return strings.Contains(out, "dead") },
		"the other servers detect the failure"); err != nil {
		return err
	}
	if err := north.StartAccess(limit); err != nil {
		return err
	}
	if err := s.shows(ctx, "alice", "tka clusters", 40*time.Second, met,
		"the server is listed again after its restart"); err != nil {
		return err
	}
	return s.steps(ctx, "alice", step{says: "she is signed out of all clusters", run: "tka logout --all"})
}

// met reports whether a server lists three clusters and has contacted each itself.
func met(out string) bool {
	return strings.Count(out, "alive") == 3 && !strings.Contains(out, "unverified")
}

// shows runs a command until ok accepts its output, and then prints it.
func (s *show) shows(ctx context.Context, who, run string, limit time.Duration, ok func(out string) bool, says string) error {
	words := strings.Fields(run)
	began := time.Now()
	for {
		r, err := s.people[who].Run(ctx, words[0], words[1:]...)
		if err != nil {
			return err
		}
		if ok(r.Stdout) || time.Since(began) > limit {
			s.command(who, "%s", run)
			s.output(r.Both)
			s.claim(ok(r.Stdout), "%s (%.1f s)", says, time.Since(began).Seconds())
			return nil
		}
		// Below the rate that the server allows one device, because the next step is a request of the same device.
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// stay prints how to continue by hand and waits for Ctrl-C.
func (s *show) stay(ctx context.Context) error {
	if err := s.grant(alice); err != nil {
		return err
	}
	for name, p := range s.people {
		var b strings.Builder
		b.WriteString("#!/bin/sh\n# Runs a command, or a shell, as " + name + ".\n")
		for _, e := range p.Env() {
			k, v, _ := strings.Cut(e, "=")
			if k == "TERM" || k == "HOME" {
				continue
			}
			fmt.Fprintf(&b, "export %s='%s'\n", k, strings.ReplaceAll(v, "'", `'\''`))
		}
		b.WriteString("if [ $# -eq 0 ]; then PS1='" + name + "$ ' exec \"${SHELL:-/bin/sh}\"; fi\nexec \"$@\"\n")
		if err := os.WriteFile(filepath.Join(s.dir, "as-"+name), []byte(b.String()), 0o700); err != nil {
			return err
		}
	}
	fmt.Print("\nThe demo keeps running until Ctrl-C. alice has her grant again. In another terminal:\n\n")
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	for _, row := range [][2]string{
		{filepath.Join(s.dir, "as-alice"), "start a shell as alice: tka login, kubectl …"},
		{filepath.Join(s.dir, "as-bob") + " tka login", "run one command as bob"},
		{s.policyFile(), "the tailnet policy: edit it, and try again"},
		{s.env.AuditFile(), "the audit log"},
		{"kubectl --kubeconfig " + s.env.Cluster.Kubeconfig, "use the cluster as its administrator"},
	} {
		fmt.Fprintf(table, "  %s\t%s\n", row[0], row[1])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Print("\nOpen the dashboard in a browser as alice or bob:\n\n")
	for _, who := range []string{"alice", "bob"} {
		fmt.Printf("  chromium --proxy-server=%s --user-data-dir=%s --no-first-run --ignore-certificate-errors %s/\n", s.people[who].Proxy, filepath.Join(s.dir, "browser-"+who), s.env.Dashboard())
	}
	fmt.Printf("\n  curl --cacert %s/roots.pem --proxy %s %s/api/v1alpha1/cluster-info\n", s.dir, s.people["alice"].Proxy, s.env.Server())
	fmt.Println("\nWhile the demo runs, every program on this machine can use these proxies and act as alice or bob.")
	<-ctx.Done()
	fmt.Println("\nStopping.")
	return nil
}

// pause waits for d. Its error is the demo's final message.
func pause(ctx context.Context, d time.Duration) error {
	if retry.Sleep(ctx, d) != nil {
		return errors.New("interrupted")
	}
	return nil
}
