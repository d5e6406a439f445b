// Package doctor checks whether everything is in place for signing in. Evaluate turns gathered facts into results. It keeps law 7: it
// reports a check that did not run as skipped, never as ok.
package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
)

// A Status is the severity of a result.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Warn    Status = "warn" // works, but needs attention
	Fail    Status = "fail" // does not work
	Skipped Status = "skipped"
)

// A Result is the result of one check.
type Result struct {
	Name    string   `json:"name"` // stable
	Status  Status   `json:"state"`
	Message string   `json:"message"`
	Advice  []string `json:"advice"`
}

// A Failure is why a fact could not be determined, in words for people.
type Failure struct {
	Message string
	Advice  []string
}

// Facts are the gathered facts. A part that could not be determined has its zero value, and its Failure says why.
type Facts struct {
	Now time.Time

	SettingsFailure Failure // in the settings file

	Tailnet        *Tailnet // from the tailscale command; nil: no such command, or it failed
	TailnetFailure Failure

	Server        string // URL
	Cluster       string
	ServerFailure Failure
	FirstContact  bool // the key was not known before
	Key           string
	ServerTime    time.Time // time of its response; zero: not reported
	ServerVersion string
	ClientVersion string

	Whoami        *signin.Whoami
	WhoamiFailure Failure

	Discovery        *Discovery
	DiscoveryFailure Failure
	Policy           []RuleProblem // rules of the policy that a cluster cannot use

	Mode signin.Mode // how kubectl reaches the API server; "": unknown

	APIServer  string // URL of what kubectl connects to: the API server, or in the mode proxy the access proxy
	PrivateCA  bool   // the cluster's own authority issued the access proxy's certificate
	Direct     bool   // packets reach the access proxy directly
	Relay      string // region of the relay through which they reach it; "": none, or unknown
	APIVersion string // of the API server; "": it answers, and refuses this request
	APIFailure Failure
	Proxy      string // proxy that kubectl would use for the API server; "": none
	NoProxy    string // value of $NO_PROXY with which kubectl would not use it; "": it may

	Rules          int    // number of rules that grant rights
	RulesNamespace string // namespace
	RulesFailure   Failure

	Kubeconfig        *Kubeconfig
	KubeconfigFailure Failure

	Plugin        string // path; "": not found
	PluginCommand string // as in the kubeconfig
	Kuberc        Kuberc

	Tokens TokenStorage
}

// A Tailnet is what the tailscale command reports about this machine.
type Tailnet struct {
	State     string // "Running" if all is well
	Node      string
	KeyExpiry time.Time // zero: never
}

// A Kubeconfig is the state of the kubeconfig for the cluster.
type Kubeconfig struct {
	Context   string // the expected context
	Exists    bool
	Matches   bool // it has the address and the authority that the server reports
	Current   bool
	Outdated  signin.Mode // of the context, if the cluster no longer offers it
	StaleLock string      // a lock file that a dead program left
}

// A Kuberc is the plugin policy in kubectl's settings.
type Kuberc struct {
	File   string // "": no file
	Policy string // "", "AllowAll", "DenyAll", "Allowlist"
	Listed bool   // tka is on the list
}

// TokenStorage is where tka stores tokens.
type TokenStorage string

// The storage locations.
const (
	InMemory  TokenStorage = "memory"
	OnDisk    TokenStorage = "disk"
	NotStored TokenStorage = "none"
)

// Limits between good and bad values.
const (
	expiresSoon = 7 * 24 * time.Hour // for the expiry of a node's key
	smallSkew   = 10 * time.Second
	largeSkew   = time.Minute // the most that servers tolerate
)

// allowLine is the kuberc text that lets kubectl run the plugin when only listed plugins are allowed.
const allowLine = "credentialPluginPolicy: Allowlist\ncredentialPluginAllowlist:\n- command: tka"

// Evaluate turns facts into results, in the order in which a person would check them.
func Evaluate(f Facts) []Result {
	var all []Result
	for _, c := range []struct {
		name    string
		failure Failure // if there is one, it is the result
		check   func() Result
	}{
		{"settings", f.SettingsFailure, func() Result { return result(OK, "The settings are valid.") }},
		{"tailnet", Failure{}, f.tailnet},
		{"node key", Failure{}, f.nodeKey},
		{"server", f.ServerFailure, f.server},
		{"server proof", Failure{}, f.proof},
		{"clock", Failure{}, f.clock},
		{"version", Failure{}, f.version},
		{"grant", f.WhoamiFailure, f.grant},
		{"sign-in", Failure{}, f.signIn},
		{"role", Failure{}, f.role},
		{"API server", f.APIFailure, f.apiServer},
		{"proxy", Failure{}, f.proxy},
		{"rights", f.RulesFailure, f.rights},
		{"kubeconfig", f.KubeconfigFailure, f.kubeconfig},
		{"plugin", Failure{}, f.plugin},
		{"plugin policy", Failure{}, f.kuberc},
		{"tokens", Failure{}, f.tokens},
		{"discovery", Failure{}, f.discovery},
		{"clusters", Failure{}, f.clusters},
		{"policy", Failure{}, f.policy},
	} {
		r := Result{Status: Fail, Message: c.failure.Message, Advice: c.failure.Advice}
		if r.Message == "" {
			r = c.check()
		}
		r.Name, r.Advice = c.name, append([]string{}, r.Advice...) // never null in JSON
		all = append(all, r)
	}
	return all
}

// Worst returns the worst status of all results.
func Worst(all []Result) Status {
	for _, s := range []Status{Fail, Warn} {
		if slices.ContainsFunc(all, func(f Result) bool { return f.Status == s }) {
			return s
		}
	}
	return OK
}

func result(s Status, format string, args ...any) Result {
	return Result{Status: s, Message: fmt.Sprintf(format, args...)}
}

func (f Result) advise(format string, args ...any) Result {
	f.Advice = append(f.Advice, fmt.Sprintf(format, args...))
	return f
}

func (f Facts) tailnet() Result {
	switch t := f.Tailnet; {
	case t == nil && f.ServerFailure.Message == "" && f.Server != "":
		return result(Skipped, "%s; the server was reached, so this machine is in the tailnet.", f.TailnetFailure.Message)
	case t == nil:
		return result(Skipped, "%s, so it is unknown whether this machine is in the tailnet.", f.TailnetFailure.Message)
	case t.State != "Running":
		return result(Fail, "This machine is not in the tailnet: its state is %s.", t.State).advise("tailscale up")
	default:
		return result(OK, "This machine is in the tailnet as %s.", t.Node)
	}
}

func (f Facts) nodeKey() Result {
	switch t := f.Tailnet; {
	case t == nil:
		return result(Skipped, "The expiry of this machine's node key is unknown: %s.", lowerFirst(f.TailnetFailure.Message))
	case t.KeyExpiry.IsZero():
		return result(OK, "This machine's node key does not expire.")
	case !f.Now.Before(t.KeyExpiry):
		return result(Fail, "This machine's node key expired on %s.", formatDay(t.KeyExpiry)).advise("tailscale up --force-reauth")
	case t.KeyExpiry.Sub(f.Now) < expiresSoon:
		return result(Warn, "This machine's node key expires on %s.", formatDay(t.KeyExpiry)).advise("tailscale up --force-reauth")
	default:
		return result(OK, "This machine's node key is valid until %s.", formatDay(t.KeyExpiry))
	}
}

func (f Facts) server() Result {
	switch {
	case f.Server == "":
		return result(Skipped, "No server was contacted, because the settings are not valid.")
	case strings.HasPrefix(f.Server, "http://"):
		return result(OK, "The server %s answers over http://: the tailnet encrypts, and its key proves its identity.", f.Server)
	}
	return result(OK, "The server %s answers.", f.Server)
}

func (f Facts) proof() Result {
	switch {
	case f.Key == "":
		return result(Skipped, "The cluster of the server is unknown.")
	case f.FirstContact:
		return result(Warn, "The server proved its identity with a key that is new to this machine: %s.", f.Key).
			advise("Compare it with the key in the server's log.")
	}
	return result(OK, "The server proved its identity with the key that this machine knows, %s.", f.Key)
}

func (f Facts) clock() Result {
	if f.ServerTime.IsZero() {
		return result(Skipped, "The server's clock is unknown.")
	}
	// The server reports whole seconds, and its response took a moment.
	skew := f.Now.Sub(f.ServerTime).Truncate(time.Second)
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	switch d := skew.Abs(); {
	case d > largeSkew:
		return result(Fail, "The clock of this machine is %v %s the server's. The expiry times of sign-ins are wrong by the same amount.", d, direction).advise("Synchronise the clock over the network.")
	case d > smallSkew:
		return result(Warn, "The clock of this machine is %v %s the server's.", d, direction).advise("Synchronise the clock over the network.")
	}
	return result(OK, "The clock of this machine agrees with the server's.")
}

func (f Facts) version() Result {
	switch {
	case f.ServerVersion == "":
		return result(Skipped, "The server's version is unknown; this is tka %s.", f.ClientVersion)
	case SkewTooLarge(f.ClientVersion, f.ServerVersion):
		older := "tka"
		client, _ := parseMinor(f.ClientVersion)
		server, _ := parseMinor(f.ServerVersion)
		if slices.Compare(client[:], server[:]) > 0 {
			older = "the server"
		}
		return result(Warn, "tka is %s and the server %s, which is more than one minor version apart.", f.ClientVersion, f.ServerVersion).advise("Upgrade %s.", older)
	}
	return result(OK, "tka is %s, the server %s.", f.ClientVersion, f.ServerVersion)
}

// SkewTooLarge reports whether two versions are more than one minor version apart. It returns false if either is not of the form v1.2.3.
func SkewTooLarge(a, b string) bool {
	x, ok := parseMinor(a)
	y, ok2 := parseMinor(b)
	return ok && ok2 && (x[0] != y[0] || max(x[1]-y[1], y[1]-x[1]) > 1)
}

// parseMinor parses "v1.2.3" as 1 and 2. A build that is not a release has no version.
func parseMinor(v string) (n [2]int, ok bool) {
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

func (f Facts) grant() Result {
	switch w := f.Whoami; {
	case w == nil:
		return result(Skipped, "The grants of the tailnet's policy are unknown.")
	case !w.Decision.Allowed:
		return Result{Status: Fail, Message: w.Decision.Message, Advice: w.Decision.Advice}
	default:
		for _, r := range w.Rules {
			if r.Problem != "" {
				return result(Warn, "%s A rule for %s cannot be used: %s", w.Decision.Message, callerName(*w), r.Problem)
			}
		}
		return result(OK, "The tailnet's policy grants %s access. %s", callerName(*w), w.Decision.Message)
	}
}

func callerName(w signin.Whoami) string {
	if w.Caller.Login != "" {
		return w.Caller.Login
	}
	return "the node " + w.Caller.Node
}

func (f Facts) signIn() Result {
	if f.Whoami == nil {
		return result(Skipped, "It is unknown whether this device is signed in.")
	}
	s := f.Whoami.Signin
	switch {
	case s == nil:
		return result(Warn, "This device is not signed in.").advise("tka login")
	case s.State == signin.Ready:
		text := fmt.Sprintf("This device is signed in with the role %s until %s", s.Role, s.Until)
		if len(s.Record) > 0 {
			text += ", and the access proxy records " + strings.Join(s.Record, ", ")
		}
		return result(OK, "%s.", text)
	case s.State == signin.Pending:
		return result(Warn, "The cluster is still preparing the sign-in.").advise("tka status")
	case s.State == signin.Refused && s.Reason == signin.ReasonClockSkew:
		return result(Fail, "The cluster cannot provide the sign-in: %s: %s", s.Reason, s.Message).advise("Ask an administrator of the cluster to synchronise both clocks over the network.")
	case s.State == signin.Refused && s.Reason != "":
		return result(Fail, "The cluster cannot provide the sign-in: %s: %s", s.Reason, s.Message).advise("Ask an administrator of the cluster, or sign in with another role: tka login --role ROLE")
	case s.State == signin.Refused:
		return result(Fail, "The cluster cannot provide the sign-in.").advise("tka login, which prints the reason")
	}
	return result(Warn, "The sign-in is %s.", s.State).advise("tka login")
}

// ClusterRoles of Kubernetes that grant more than they seem to when they are bound in the whole cluster.
var broadRoles = []string{"edit", "admin", "cluster-admin"}

func (f Facts) role() Result {
	switch {
	case f.Whoami == nil || f.Whoami.Signin == nil:
		return result(Skipped, "There is no role to check.")
	case slices.Contains(broadRoles, f.Whoami.Signin.Role) && len(f.Whoami.Signin.Namespaces) == 0:
		return result(Warn, "The role %s applies to the whole cluster, reads every Secret and can act as every ServiceAccount.", f.Whoami.Signin.Role).
			advise("Request a grant with namespaces, or sign in to some namespaces only: tka login --namespace NAME")
	}
	return result(OK, "The role %s has a suitable scope.", f.Whoami.Signin.Role)
}

func (f Facts) apiServer() Result {
	switch {
	case f.APIServer == "":
		return result(Skipped, "The address of the API server is unknown.")
	case f.Mode == signin.ModeProxy && f.APIVersion == "":
		return result(OK, "The access proxy %s answers. It refuses requests until this device is signed in. %s%s", f.APIServer, f.certificate(), f.path())
	case f.Mode == signin.ModeProxy:
		return result(OK, "The access proxy %s carries requests to the API server: Kubernetes %s. %s%s", f.APIServer, f.APIVersion, f.certificate(), f.path())
	case f.APIVersion == "":
		return result(OK, "The API server %s answers.", f.APIServer)
	}
	return result(OK, "The API server %s answers: Kubernetes %s.", f.APIServer, f.APIVersion)
}

// certificate says which kind of certificate the access proxy has.
func (f Facts) certificate() string {
	if f.PrivateCA {
		return "Its certificate is private: the cluster issued it, and the kubeconfig has the authority."
	}
	return "Its certificate is public."
}

// path says how packets reach the access proxy, if Tailscale knows it.
func (f Facts) path() string {
	switch {
	case f.Direct:
		return " The connection is direct."
	case f.Relay == "peer":
		return " The connection is relayed by a node of the tailnet, so each request takes longer."
	case f.Relay != "":
		return " The connection is relayed through the DERP region " + f.Relay + ", so each request takes longer: UDP between this machine and the proxy would make it direct."
	}
	return ""
}

func (f Facts) rights() Result {
	where := "in the namespace " + f.RulesNamespace
	switch {
	case f.RulesNamespace == "":
		return result(Skipped, "There is no token for the request.")
	case f.Rules == 0:
		return result(Warn, "The API server accepts the token, which gives no rights %s.", where).advise("tka why get pods -n %s", f.RulesNamespace)
	case f.Rules == 1:
		return result(OK, "The API server accepts the token; 1 rule gives it rights %s.", where)
	}
	return result(OK, "The API server accepts the token; %d rules give it rights %s.", f.Rules, where)
}

func (f Facts) kubeconfig() Result {
	k := f.Kubeconfig
	switch {
	case k == nil:
		return result(Skipped, "The cluster is unknown.")
	case k.StaleLock != "":
		return result(Warn, "A killed program left the lock %s.", k.StaleLock).advise("If no kubectl and no tka is running, remove it.")
	case !k.Exists:
		return result(Warn, "The kubeconfig has no context %s.", k.Context).advise("tka login")
	case k.Outdated != "":
		return result(Fail, "The context %s uses the mode %s, which the cluster no longer offers.", k.Context, k.Outdated).advise("tka login")
	case !k.Matches && f.Mode == signin.ModeProxy:
		return result(Fail, "The context %s has another access proxy or another certificate authority than the access server reports.", k.Context).advise("tka login")
	case !k.Matches:
		return result(Fail, "The context %s has another API server or another certificate authority than the access server reports.", k.Context).advise("tka login")
	case !k.Current:
		return result(OK, "The kubeconfig has the context %s, which is not the current one.", k.Context).advise("kubectl --context %s get pods", k.Context)
	}
	return result(OK, "The context %s is the current one.", k.Context)
}

func (f Facts) plugin() Result {
	switch {
	case f.Mode == signin.ModeProxy:
		return result(Skipped, "In the mode proxy, kubectl runs no plugin.")
	case f.PluginCommand == "":
		return result(Skipped, "The kubeconfig has no plugin.")
	case f.Plugin == "":
		return result(Fail, "kubectl does not find %s, which fetches the tokens.", f.PluginCommand).advise("Put tka into a directory of $PATH.")
	}
	return result(OK, "kubectl finds the plugin, %s.", f.Plugin)
}

func (f Facts) kuberc() Result {
	switch k := f.Kuberc; {
	case f.Mode == signin.ModeProxy:
		return result(Skipped, "In the mode proxy, kubectl runs no plugin.")
	case k.File == "" || k.Policy == "" || k.Policy == "AllowAll":
		return result(OK, "kubectl runs every plugin in a kubeconfig. Since version 1.35, a setting can restrict it to this plugin.").
			advise("In ~/.kube/kuberc: %s", strings.ReplaceAll(allowLine, "\n", "; "))
	case k.Policy == "Allowlist" && k.Listed:
		return result(OK, "kubectl may run the plugin: %s lists it.", k.File)
	default:
		return result(Fail, "kubectl may not run the plugin: %s has %s.", k.File, k.Policy).
			advise("There: %s", strings.ReplaceAll(allowLine, "\n", "; "))
	}
}

func (f Facts) tokens() Result {
	switch {
	case f.Mode == signin.ModeProxy:
		return result(OK, "kubectl needs no token from this machine: the access proxy adds it.")
	case f.Tokens == InMemory:
		return result(OK, "tka caches tokens for kubectl in memory.")
	case f.Tokens == OnDisk:
		return result(OK, "tka caches tokens for kubectl on disk, because $XDG_RUNTIME_DIR is not set.")
	}
	return result(OK, "tka caches no tokens: each run of kubectl requests one from the server.")
}

func formatDay(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// lowerFirst makes the first letter lower case, to use s inside a sentence.
func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
