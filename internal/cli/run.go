package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// runFlags are the flags of the command run.
type runFlags struct {
	clusters []string
	all      bool
	selector string
	session  string
	atOnce   int
}

// maxAtOnce limits --concurrency.
const maxAtOnce = 256

func (t *tka) run() *cobra.Command {
	var rf runFlags
	cmd := &cobra.Command{
		Use:   "run [-l SELECTOR | --cluster A,B | --all] -- COMMAND ARG...",
		Short: "Run a command in many clusters at once",
		Long: `Run a command once for each cluster, several at a time. Each run has a separate kubeconfig that
contains only its cluster and is removed afterwards, and $TKA_CLUSTER. Its standard input is
empty. Each line of its output begins with the name of the cluster. With -o json or yaml, tka
prints one object for each cluster at the end: cluster, exit, stdout, stderr, took, and error
if the command could not run there.

The command uses the sign-in that this device has in each cluster, and tka signs in to none.
With --all and --selector, clusters that grant you nothing are left out. To sign in to the
others first: tka login --all, or tka login -l SELECTOR.

The exit code is 0 if the command succeeded everywhere, its code if it failed everywhere with
the same one, and else 1. Ctrl-C interrupts the command in all clusters, and a second one
kills it. --timeout limits the time that tka needs for one cluster before the command starts.`,
		Example:     "  tka run -l env=prod -- kubectl get nodes\n  tka run --cluster prod-eu,prod-us -o json -- kubectl get pods -A -o json",
		Annotations: map[string]string{noTimeLimit: ""},
		Args: func(cmd *cobra.Command, args []string) error {
			several := rf.all || rf.selector != ""
			switch {
			case t.server != "" || t.context != "":
				return output.UsageErrorf("tka run cannot be combined with --server or --context")
			case several == (len(rf.clusters) > 0):
				return output.UsageErrorf("tka run needs either --cluster, or --all or --selector").Try("tka run --help")
			case rf.atOnce < 1 || rf.atOnce > maxAtOnce:
				return output.UsageErrorf("--concurrency must be from 1 to %d (got %d)", maxAtOnce, rf.atOnce)
			case len(args) == 0:
				return output.UsageErrorf("tka run needs a command").Try("tka run --all -- kubectl get nodes")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return t.doRun(cmd.Context(), rf, args) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&rf.clusters, "cluster", nil, "clusters, separated by commas; this machine or its server must know them")
	t.complete(cmd, "cluster", t.clusterNames)
	f.BoolVar(&rf.all, "all", false, "every cluster that this machine or its server knows")
	selectorFlag(cmd, &rf.selector, "all clusters")
	f.StringVar(&rf.session, "session", "", "session of this device (default: the default session)")
	t.complete(cmd, "session", t.sessionNames)
	f.IntVar(&rf.atOnce, "concurrency", maxConcurrent, "number of clusters at a time")
	f.SetInterspersed(false) // flags after the command belong to the command
	return cmd
}

// runItem is the result of the command in one cluster.
type runItem struct {
	meta
	Cluster string `json:"cluster"`
	Exit    int    `json:"exit"` // code of the command, or of tka's error
	Stdout  string `json:"stdout"`
	Stderr  string `json:"stderr"`
	Took    string `json:"took"`            // Go duration
	Error   string `json:"error,omitempty"` // why the command did not run
}

// A multiRun is one run of a command in several clusters.
type multiRun struct {
	runFlags
	program string
	args    []string
	dir     string          // private
	kill    context.Context // ends at the second signal
	out     io.Writer
	width   int  // of the longest name
	objects bool // the output is kept for the result
}

func (t *tka) doRun(ctx context.Context, rf runFlags, command []string) error {
	if _, err := signin.FindSession(rf.session); err != nil {
		return output.UsageErrorf("--session: %v", err).Because(err)
	}
	format, err := t.outputFormat()
	if err != nil {
		return err
	}
	program, args, err := t.shellProgram(command)
	if err != nil {
		return err
	}
	targets, err := t.runTargets(ctx, rf)
	if err != nil {
		return err
	}
	dir, err := t.openSession(ctx)
	if err != nil {
		return err
	}
	defer dir.Close()
	kill, stop := secondSignal()
	defer stop()
	m := &multiRun{runFlags: rf, program: program, args: args, dir: dir.Dir, kill: kill, out: &lockedWriter{Writer: t.Out},
		objects: !slices.Contains([]string{"", output.Table, output.Wide}, format)}
	for _, at := range targets {
		m.width = max(m.width, len(at.cluster))
	}
	all := forEachBounded(ctx, t, rf.atOnce, targets, m.one)
	return t.showRun(ctx, rf, all, m.objects)
}

// runTargets returns the clusters of the command.
func (t *tka) runTargets(ctx context.Context, rf runFlags) (targets []target, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if len(rf.clusters) > 0 {
		for _, name := range rf.clusters {
			if name == "" {
				return nil, output.UsageErrorf("--cluster has an empty name")
			}
			if !slices.Contains(targets, target{cluster: name}) {
				targets = append(targets, target{cluster: name})
			}
		}
		return targets, nil
	}
	targets, err = t.allTargets(ctx)
	if err == nil {
		targets, err = t.matching(ctx, targets, rf.selector)
	}
	if err == nil && len(targets) == 0 {
		err = output.Errorf(output.ExitFailed, "No cluster matches").Try("tka clusters")
	}
	return targets, err
}

// secondSignal returns a context that ends at the second signal. The first one ends the context of the program.
func secondSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, shellsession.Signals()...)
	go func() {
		for count := 0; count < 2; {
			select {
			case sig := <-signals:
				if shellsession.EndsOperation(sig) {
					count++
				}
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	return ctx, func() { signal.Stop(signals); cancel() }
}

// one runs the command in one cluster. An error says why it did not run.
func (m *multiRun) one(ctx context.Context, t *tka, at target) (it runItem, err error) {
	it = runItem{meta: newMeta("Run"), Cluster: cmp.Or(at.cluster, at.server)}
	began := t.Now()
	defer func() { it.Took = t.Now().Sub(began).Round(time.Millisecond).String() }()
	if ctx.Err() != nil {
		return it, output.Errorf(output.ExitInterrupted, "interrupted")
	}
	kubeconfig, err := m.writeKubeconfig(ctx, t, at)
	if err != nil {
		return it, err
	}
	defer os.RemoveAll(filepath.Dir(kubeconfig))
	cmd := exec.Command(m.program, m.args...)
	cmd.Env = append(childEnv(), "KUBECONFIG="+kubeconfig, clusterEnv+"="+at.cluster, sessionEnv+"="+m.session)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if !m.objects {
		prefix := fmt.Sprintf("%-*s | ", m.width, at.cluster)
		out, errs := &lineWriter{to: m.out, prefix: prefix}, &lineWriter{to: t.Err, prefix: prefix}
		defer out.end()
		defer errs.end()
		cmd.Stdout, cmd.Stderr = out, errs
	}
	it.Exit, err = shellsession.RunGroup(ctx, m.kill, cmd)
	it.Stdout, it.Stderr = stdout.String(), stderr.String()
	if err != nil {
		return it, output.Errorf(output.ExitFailed, "the command cannot be run: %v", err).Because(err)
	}
	return it, nil
}

// writeKubeconfig writes the kubeconfig of the device's sign-in to a private directory.
func (m *multiRun) writeKubeconfig(ctx context.Context, t *tka, at target) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	set, err := t.settings()
	if err != nil {
		return "", err
	}
	l, err := t.connect(ctx, at.cluster)
	if err != nil {
		return "", err
	}
	mode, err := modeFor(l, "")
	if err != nil {
		return "", err
	}
	g, err := l.Access(ctx, signin.Session(m.session), mode)
	if err != nil {
		return "", err
	}
	entry := t.kubeconfigEntry(set, g, nil)
	if err := t.checkSameCluster(entry, l); err != nil {
		return "", err
	}
	doc, err := kubeconfig.Document(entry)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(m.dir, "cluster-*")
	if err == nil {
		path = filepath.Join(dir, "kubeconfig")
		err = os.WriteFile(path, doc, 0o600)
	}
	if err != nil {
		return "", output.Errorf(output.ExitFailed, "the kubeconfig cannot be written: %v", err).Because(err)
	}
	return path, nil
}

// showRun prints what the commands did not print themselves.
func (t *tka) showRun(ctx context.Context, rf runFlags, all []outcome[runItem], objects bool) error {
	if ran := func(o outcome[runItem]) bool { return o.err == nil }; len(rf.clusters) == 0 && slices.ContainsFunc(all, ran) {
		all = slices.DeleteFunc(all, func(o outcome[runItem]) bool { return problem.CodeOf(o.err) == problem.NoCapability })
	}
	var items []runItem
	for i, o := range all {
		it := o.value
		switch {
		case o.err != nil:
			it.Exit, it.Error = output.ExitCode(o.err), errorMessage(o.err)
		case it.Exit != output.ExitOK:
			all[i].err = output.SilentExit(it.Exit)
		}
		items = append(items, it)
	}
	code := commonExitCode(all)
	if ctx.Err() != nil {
		code = output.ExitInterrupted
	}
	return t.printResult(result{object: newList("RunList", items), names: mapped(items, func(it runItem) string { return it.Cluster }), code: code, table: func(bool) {
		for i, it := range items {
			switch {
			case it.Error != "":
				t.hint("%s: %s", it.Cluster, it.Error)
				for _, line := range output.AsError(all[i].err).Advice {
					t.hint("%s: try: %s", it.Cluster, line)
				}
			case it.Exit != output.ExitOK:
				t.hint("%s: exit code %s", it.Cluster, strconv.Itoa(it.Exit))
			}
		}
	}})
}

// longestLine is the length in bytes from which a line is written in pieces.
const longestLine = 64 << 10

// A lineWriter writes whole lines with a prefix, each by one call.
type lineWriter struct {
	to     io.Writer
	prefix string
	rest   []byte // of a line that is not complete
}

// Write implements [io.Writer].
func (w *lineWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		line, rest, complete := bytes.Cut(b, []byte{'\n'})
		w.rest, b = append(w.rest, line...), rest
		if !complete && len(w.rest) < longestLine {
			break
		}
		if err := w.line(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// end writes the last line if the command did not end it.
func (w *lineWriter) end() {
	if len(w.rest) > 0 {
		_ = w.line()
	}
}

func (w *lineWriter) line() error {
	_, err := w.to.Write(slices.Concat([]byte(w.prefix), w.rest, []byte{'\n'}))
	w.rest = w.rest[:0]
	return err
}
