// Package checkup checks whether everything is in place for signing in. Judge turns gathered facts into findings. It keeps law 7: it
// reports a check that did not run as skipped, never as ok.
package checkup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
)

// A State is the severity of a finding.
type State string

// The states.
const (
	OK      State = "ok"
	Warn    State = "warn" // works, but needs attention
	Fail    State = "fail" // does not work
	Skipped State = "skipped"
)

// A Finding is the result of one check.
type Finding struct {
	Name    string   `json:"name"` // stable
	State   State    `json:"state"`
	Message string   `json:"message"`
	Advice  []string `json:"advice"`
}

// A Trouble is why a fact could not be determined, in words for people.
type Trouble struct {
	Message string
	Advice  []string
}

// Facts are the gathered facts. A part that could not be determined has its zero value, and its Trouble says why.
type Facts struct {
	Now time.Time

	Settings Trouble // in config.yaml

	Tailnet        *Tailnet // from the tailscale command; nil: no such command, or it failed
	TailnetTrouble Trouble

	Server        string // URL
	Cluster       string
	ServerTrouble Trouble
	FirstContact  bool // the key was not known before
	Key           string
	ServerTime    time.Time // time of its response; zero: not reported
	ServerVersion string
	OurVersion    string

	Whoami        *signin.Whoami
	WhoamiTrouble Trouble

	Discovery        *Discovery
	DiscoveryTrouble Trouble

	APIServer  string
	APIVersion string
	APITrouble Trouble

	Rules        int    // number of rules that grant rights
	RulesIn      string // namespace
	RulesTrouble Trouble

	Kubeconfig        *Kubeconfig
	KubeconfigTrouble Trouble

	Plugin        string // path; "": not found
	PluginCommand string // as in the kubeconfig
	Kuberc        Kuberc

	Tokens Tokens
}

// A Tailnet is what the tailscale command reports about this machine.
type Tailnet struct {
	State     string // "Running" if all is well
	Node      string
	KeyExpiry time.Time // zero: never
}

// A Kubeconfig is the state of the kubeconfig for the cluster.
type Kubeconfig struct {
	Context string // the expected context
	There   bool
	Fits    bool // it has the address and the authority that the server reports
	Current bool
	Stale   string // a lock file that a dead program left
}

// A Kuberc is the plugin policy in kubectl's settings.
type Kuberc struct {
	File   string // "": no file
	Policy string // "", "AllowAll", "DenyAll", "Allowlist"
	Listed bool   // tka is on the list
}

// Tokens is where tka stores tokens.
type Tokens string

// The storage locations.
const (
	InMemory Tokens = "memory"
	OnDisk   Tokens = "disk"
	Nowhere  Tokens = "none"
)

// Limits between good and bad values.
const (
	soonExpires = 7 * 24 * time.Hour // for the expiry of a node's key
	smallSkew   = 10 * time.Second
	largeSkew   = time.Minute // the most that servers tolerate
)

// AllowLine is the kuberc text that lets kubectl run the plugin when only listed plugins are allowed.
const AllowLine = "credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist:\n- command: tka"

// Judge turns facts into findings, in the order in which a person would check them.
func Judge(f Facts) []Finding {
	return []Finding{
		f.settings(), f.tailnet(), f.nodeKey(), f.server(), f.proof(), f.clock(), f.version(), f.grant(), f.signIn(), f.role(),
		f.apiServer(), f.rights(), f.kubeconfig(), f.plugin(), f.kuberc(), f.tokens(), f.discovery(), f.members(),
	}
}

// Worst returns the worst state of all findings.
func Worst(all []Finding) State {
	for _, s := range []State{Fail, Warn} {
		if slices.ContainsFunc(all, func(f Finding) bool { return f.State == s }) {
			return s
		}
	}
	return OK
}

func finding(name string, s State, format string, args ...any) Finding {
	return Finding{Name: name, State: s, Message: fmt.Sprintf(format, args...), Advice: []string{}}
}

func (f Finding) try(format string, args ...any) Finding {
	f.Advice = append(f.Advice, fmt.Sprintf(format, args...))
	return f
}

func trouble(name string, t Trouble) Finding {
	return Finding{name, Fail, t.Message, append([]string{}, t.Advice...)}
}

func (f Facts) settings() Finding {
	if f.Settings.Message != "" {
		return trouble("settings", f.Settings)
	}
	return finding("settings", OK, "The settings are valid.")
}

func (f Facts) tailnet() Finding {
	switch t := f.Tailnet; {
	case t == nil && f.ServerTrouble.Message == "" && f.Server != "":
		return finding("tailnet", Skipped, "%s; the server was reached, so this machine is in the tailnet.", f.TailnetTrouble.Message)
	case t == nil:
		return finding("tailnet", Skipped, "%s, so whether this machine is in the tailnet is not known.", f.TailnetTrouble.Message)
	case t.State != "Running":
		return finding("tailnet", Fail, "This machine is not in the tailnet: it is in the state %s.", t.State).try("tailscale up")
	default:
		return finding("tailnet", OK, "This machine is in the tailnet as %s.", t.Node)
	}
}

func (f Facts) nodeKey() Finding {
	const name = "node key"
	switch t := f.Tailnet; {
	case t == nil:
		return finding(name, Skipped, "When the key of this machine's node expires is not known: %s.", lower(f.TailnetTrouble.Message))
	case t.KeyExpiry.IsZero():
		return finding(name, OK, "The key of this machine's node does not expire.")
	case !f.Now.Before(t.KeyExpiry):
		return finding(name, Fail, "The key of this machine's node expired on %s.", day(t.KeyExpiry)).try("tailscale up --force-reauth")
	case t.KeyExpiry.Sub(f.Now) < soonExpires:
		return finding(name, Warn, "The key of this machine's node expires on %s.", day(t.KeyExpiry)).try("tailscale up --force-reauth")
	default:
		return finding(name, OK, "The key of this machine's node is good until %s.", day(t.KeyExpiry))
	}
}

func (f Facts) server() Finding {
	switch {
	case f.ServerTrouble.Message != "":
		return trouble("server", f.ServerTrouble)
	case strings.HasPrefix(f.Server, "http://"):
		return finding("server", Warn, "The server %s answers, by http://: nothing but its proof shows that it is the one.", f.Server).
			try("Ask whoever runs it to turn on HTTPS in the tailnet.")
	}
	return finding("server", OK, "The server %s answers.", f.Server)
}

func (f Facts) proof() Finding {
	const name = "server proof"
	switch {
	case f.Key == "":
		return finding(name, Skipped, "Which cluster the server serves was not learnt.")
	case f.FirstContact:
		return finding(name, Warn, "The server proved itself by a key that this machine saw for the first time: %s.", f.Key).
			try("Compare it with the key that the server's log names.")
	}
	return finding(name, OK, "The server proved itself by the key that this machine knows, %s.", f.Key)
}

func (f Facts) clock() Finding {
	const name = "clock"
	if f.ServerTime.IsZero() {
		return finding(name, Skipped, "The server's clock was not seen.")
	}
	// The server reports whole seconds, and its response took a moment.
	skew := f.Now.Sub(f.ServerTime).Truncate(time.Second)
	way := "ahead of"
	if skew < 0 {
		way = "behind"
	}
	switch d := skew.Abs(); {
	case d > largeSkew:
		return finding(name, Fail, "The clock of this machine is %v %s the server's: ends of sign-ins are off by as much.", d, way).try("Set the clock by the network.")
	case d > smallSkew:
		return finding(name, Warn, "The clock of this machine is %v %s the server's.", d, way).try("Set the clock by the network.")
	}
	return finding(name, OK, "The clock of this machine agrees with the server's.")
}

func (f Facts) version() Finding {
	const name = "version"
	ours, ok := minor(f.OurVersion)
	theirs, ok2 := minor(f.ServerVersion)
	switch {
	case f.ServerVersion == "":
		return finding(name, Skipped, "The server's version was not learnt; this is tka %s.", f.OurVersion)
	case !ok || !ok2:
		return finding(name, OK, "tka is %s, the server %s.", f.OurVersion, f.ServerVersion)
	case SkewTooLarge(f.OurVersion, f.ServerVersion):
		older := "tka"
		if ours[0] > theirs[0] || ours[0] == theirs[0] && ours[1] > theirs[1] {
			older = "the server"
		}
		return finding(name, Warn, "tka is %s and the server %s, which is more than one minor version apart.", f.OurVersion, f.ServerVersion).try("Upgrade %s.", older)
	}
	return finding(name, OK, "tka is %s, the server %s.", f.OurVersion, f.ServerVersion)
}

// SkewTooLarge reports whether two versions are more than one minor version apart. It returns false if either is not of the form v1.2.3.
func SkewTooLarge(a, b string) bool {
	x, ok := minor(a)
	y, ok2 := minor(b)
	return ok && ok2 && (x[0] != y[0] || max(x[1]-y[1], y[1]-x[1]) > 1)
}

// minor parses "v1.2.3" as 1 and 2. A build that is not a release has no version.
func minor(v string) (n [2]int, ok bool) {
	rest, ok := strings.CutPrefix(v, "v")
	if !ok || strings.HasPrefix(v, "v0.0.0") {
		return n, false
	}
	parts := strings.SplitN(rest, ".", 3)
	if len(parts) != 3 {
		return n, false
	}
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(parts[i]); err != nil || n[i] < 0 {
			return n, false
		}
	}
	return n, true
}

func (f Facts) grant() Finding {
	const name = "grant"
	switch w := f.Whoami; {
	case w == nil && f.WhoamiTrouble.Message != "":
		return trouble(name, f.WhoamiTrouble)
	case w == nil:
		return finding(name, Skipped, "What the tailnet's policy grants was not learnt.")
	case !w.Decision.Allowed:
		return Finding{name, Fail, w.Decision.Message, append([]string{}, w.Decision.Advice...)}
	default:
		for _, r := range w.Rules {
			if r.Problem != "" {
				return finding(name, Warn, "%s A rule for %s cannot be used: %s", w.Decision.Message, who(*w), r.Problem)
			}
		}
		return finding(name, OK, "The tailnet's policy grants %s access. %s", who(*w), w.Decision.Message)
	}
}

func who(w signin.Whoami) string {
	if w.Caller.Login != "" {
		return w.Caller.Login
	}
	return "the node " + w.Caller.Node
}

func (f Facts) signIn() Finding {
	const name = "sign-in"
	if f.Whoami == nil {
		return finding(name, Skipped, "Whether this device is signed in was not learnt.")
	}
	s := f.Whoami.Signin
	switch {
	case s == nil:
		return finding(name, Warn, "This device is not signed in.").try("tka login")
	case s.State == signin.Ready:
		return finding(name, OK, "This device is signed in with the role %s until %s.", s.Role, s.Until)
	case s.State == signin.Pending:
		return finding(name, Warn, "The sign-in is still being made.").try("tka status")
	case s.State == signin.Refused && s.Reason == signin.ReasonClockSkew:
		return finding(name, Fail, "The cluster cannot provide the sign-in: %s: %s", s.Reason, s.Message).try("Ask whoever runs the cluster to set both clocks by the network.")
	case s.State == signin.Refused && s.Reason != "":
		return finding(name, Fail, "The cluster cannot provide the sign-in: %s: %s", s.Reason, s.Message).try("Ask whoever runs the cluster, or sign in with another role: tka login --role ROLE")
	case s.State == signin.Refused:
		return finding(name, Fail, "The sign-in cannot be provisioned.").try("tka login, which says why")
	}
	return finding(name, Warn, "The sign-in is %s.", s.State).try("tka login")
}

// ClusterRoles of Kubernetes that grant more than they seem to when they are bound in the whole cluster.
var farReaching = []string{"edit", "admin", "cluster-admin"}

func (f Facts) role() Finding {
	const name = "role"
	switch {
	case f.Whoami == nil || f.Whoami.Signin == nil:
		return finding(name, Skipped, "There is no role to look at.")
	case slices.Contains(farReaching, f.Whoami.Signin.Role) && len(f.Whoami.Signin.Namespaces) == 0:
		return finding(name, Warn, "The role %s in the whole cluster reads every Secret and may act as every ServiceAccount.", f.Whoami.Signin.Role).
			try("Ask for a grant that names namespaces, or sign in to some only: tka login --namespace NAME")
	}
	return finding(name, OK, "The role %s holds where it should.", f.Whoami.Signin.Role)
}

func (f Facts) apiServer() Finding {
	const name = "API server"
	switch {
	case f.APITrouble.Message != "":
		return trouble(name, f.APITrouble)
	case f.APIServer == "":
		return finding(name, Skipped, "Where the API server is was not learnt.")
	case f.APIVersion == "":
		return finding(name, OK, "The API server %s answers.", f.APIServer)
	}
	return finding(name, OK, "The API server %s answers: Kubernetes %s.", f.APIServer, f.APIVersion)
}

func (f Facts) rights() Finding {
	const name = "rights"
	where := "in the namespace " + f.RulesIn
	switch {
	case f.RulesTrouble.Message != "":
		return trouble(name, f.RulesTrouble)
	case f.RulesIn == "":
		return finding(name, Skipped, "There is no token to ask with.")
	case f.Rules == 0:
		return finding(name, Warn, "The API server takes the token, which gives no rights %s.", where).try("tka why get pods -n %s", f.RulesIn)
	case f.Rules == 1:
		return finding(name, OK, "The API server takes the token; 1 rule gives it rights %s.", where)
	}
	return finding(name, OK, "The API server takes the token; %d rules give it rights %s.", f.Rules, where)
}

func (f Facts) kubeconfig() Finding {
	const name = "kubeconfig"
	k := f.Kubeconfig
	switch {
	case f.KubeconfigTrouble.Message != "":
		return trouble(name, f.KubeconfigTrouble)
	case k == nil:
		return finding(name, Skipped, "Which cluster to look for was not learnt.")
	case k.Stale != "":
		return finding(name, Warn, "A program that was killed left the lock %s.", k.Stale).try("If no kubectl and no tka is running, remove it.")
	case !k.There:
		return finding(name, Warn, "The kubeconfig has no context %s.", k.Context).try("tka login")
	case !k.Fits:
		return finding(name, Fail, "The context %s leads to another API server, or to one with another authority, than the server says.", k.Context).try("tka login")
	case !k.Current:
		return finding(name, OK, "The kubeconfig has the context %s, which is not the current one.", k.Context).try("kubectl --context %s get pods", k.Context)
	}
	return finding(name, OK, "The context %s is the current one.", k.Context)
}

func (f Facts) plugin() Finding {
	const name = "plugin"
	switch {
	case f.PluginCommand == "":
		return finding(name, Skipped, "The kubeconfig names no plugin.")
	case f.Plugin == "":
		return finding(name, Fail, "kubectl does not find %s, which fetches the tokens.", f.PluginCommand).try("Put tka into a folder of $PATH.")
	}
	return finding(name, OK, "kubectl finds the plugin, %s.", f.Plugin)
}

func (f Facts) kuberc() Finding {
	const name = "plugin policy"
	switch k := f.Kuberc; {
	case k.File == "" || k.Policy == "" || k.Policy == "AllowAll":
		return finding(name, OK, "kubectl runs every plugin that a kubeconfig names. From version 1.35 on it can be told to run this one only.").
			try("In ~/.kube/kuberc: %s", strings.ReplaceAll(AllowLine, "\n", "; "))
	case k.Policy == "Allowlist" && k.Listed:
		return finding(name, OK, "kubectl may run the plugin, by %s.", k.File)
	default:
		return finding(name, Fail, "kubectl may not run the plugin: %s says %s.", k.File, k.Policy).
			try("There: %s", strings.ReplaceAll(AllowLine, "\n", "; "))
	}
}

func (f Facts) tokens() Finding {
	const name = "tokens"
	switch f.Tokens {
	case InMemory:
		return finding(name, OK, "Tokens are kept for kubectl in memory.")
	case OnDisk:
		return finding(name, OK, "Tokens are kept for kubectl on disk, as $XDG_RUNTIME_DIR is not set.")
	}
	return finding(name, OK, "Tokens are not kept: each kubectl asks the server for one.")
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// lower makes the first letter lower case, to use s inside a sentence.
func lower(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
