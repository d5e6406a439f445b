package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxConcurrent is how many clusters tka queries concurrently.
const maxConcurrent = 8

// A lockedWriter serialises concurrent writes; each write is one line.
type lockedWriter struct {
	mu sync.Mutex
	io.Writer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(b)
}

// A target is one of several clusters that a command works on.
type target struct{ cluster, server string }

// signedInTargets returns the clusters that this machine signed in to.
func (t *tka) signedInTargets() (targets []target, err error) {
	k, err := t.state()
	if err != nil {
		return nil, err
	}
	for _, s := range k.Servers {
		if s.Chosen {
			targets = append(targets, target{s.Cluster, s.URL})
		}
	}
	return targets, nil
}

// forEach calls do for each target, at most maxConcurrent at a time. It returns the outcomes in the order of targets.
func forEach[T any](ctx context.Context, t *tka, targets []target, do func(ctx context.Context, one *tka, at target) (T, error)) []outcome[T] {
	return forEachBounded(ctx, t, maxConcurrent, targets, do)
}

// forEachBounded is forEach for at most atOnce targets at a time.
func forEachBounded[T any](ctx context.Context, t *tka, atOnce int, targets []target, do func(ctx context.Context, one *tka, at target) (T, error)) []outcome[T] {
	all := make([]outcome[T], len(targets))
	errs := &lockedWriter{Writer: t.Err}
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, at := range targets {
		all[i].target = at
		one := *t // with a separate client and flags
		one.Err = errs
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i].value, all[i].err = do(ctx, &one, at)
		})
	}
	wg.Wait()
	return all
}

// An outcome is the result for one of several clusters.
type outcome[T any] struct {
	target
	value T
	err   error
}

// commonExitCode returns the exit code for several outcomes: 0 if all succeeded, their code if all failed with the same one, and else 1.
func commonExitCode[T any](all []outcome[T]) int {
	var codes []int
	for _, o := range all {
		codes = append(codes, output.ExitCode(o.err))
	}
	switch codes = slices.Compact(codes); len(codes) {
	case 0:
		return output.ExitOK
	case 1:
		return codes[0]
	}
	return output.ExitFailed
}

// errorMessage returns the sentence of an error.
func errorMessage(err error) string { return output.AsError(err).Message }

// exitError returns nil for code 0, and otherwise an error that ends the program with that code.
func exitError(code int) error {
	if code == output.ExitOK {
		return nil
	}
	return output.SilentExit(code)
}

// selectorFlag adds the flag that selects clusters by their labels.
func selectorFlag(cmd *cobra.Command, selector *string, usage string) {
	cmd.Flags().StringVarP(selector, "selector", "l", "", usage+" with these labels: key=value, key!=value, key or !key, separated by commas")
}

// parseSelector parses the value of the flag that selectorFlag adds.
func parseSelector(text string) (labels.Selector, error) {
	selector, err := client.ParseSelector(text)
	if err != nil {
		return nil, output.UsageErrorf("--selector: %v", err)
	}
	return selector, nil
}

// matching returns the targets whose clusters have the labels that a selector asks for, according to the server's list. The empty selector selects
// all.
func (t *tka) matching(ctx context.Context, targets []target, selector string) ([]target, error) {
	if selector == "" {
		return targets, nil
	}
	selected, err := parseSelector(selector)
	if err != nil {
		return nil, err
	}
	if t.cachedDirectory == nil {
		if _, err := t.allTargets(ctx); err != nil {
			return nil, err
		}
	}
	if t.cachedDirectory == nil {
		return nil, output.Errorf(output.ExitUnreachable, "The labels of the clusters are unknown, because no server lists them").Try("tka clusters")
	}
	shown, _ := t.cachedDirectory.Filter(true, selected)
	return slices.DeleteFunc(targets, func(at target) bool {
		return !slices.ContainsFunc(shown, func(e client.DirectoryEntry) bool { return e.Name == at.cluster })
	}), nil
}

// loginAll signs in to every cluster that this machine signed in to before, and to those that the server of the settings verified. It
// reports each other cluster of that server's list with the reason, so that no cluster is left out silently.
func (t *tka) loginAll(ctx context.Context, lf loginFlags, set *config.Settings) error {
	var targets []target
	var err error
	if lf.refresh {
		targets, err = t.signedInTargets()
	} else {
		targets, err = t.allTargets(ctx)
	}
	if err == nil {
		targets, err = t.matching(ctx, targets, lf.selector)
	}
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		t.hint("No cluster matches.")
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) (loginResult, error) {
		lf := lf
		lf.cluster = at.cluster
		res, _, err := one.loginTo(ctx, lf, set)
		return res, err
	})
	type item struct {
		loginResult
		Error string `json:"error"`
	}
	var items []item
	var names []string
	var rows [][]output.Cell
	for _, o := range all {
		it := item{loginResult: o.value}
		it.meta, it.Cluster, it.Server = newMeta("Login"), cmp.Or(o.cluster, it.Cluster), cmp.Or(it.Server, o.server)
		if o.err != nil {
			it.Error = errorMessage(o.err)
			state := output.Colored(output.Red, "failed")
			if problem.CodeOf(o.err) == problem.NoCapability {
				state = output.Cell{Text: "no grant"}
			}
			it.Namespaces, it.MissingNamespaces, it.Kubeconfig = []string{}, []string{}, []string{}
			rows = append(rows, append(output.Row(o.cluster, "", ""), state, output.Cell{Text: it.Error}))
		} else {
			names = append(names, it.Context)
			rows = append(rows, append(output.Row(o.cluster, it.Username, it.Role), output.Colored(output.Green, "ready"), output.Cell{Text: "until " + t.formatTime(it.Until)}))
		}
		items = append(items, it)
	}
	if len(names) > 0 { // a cluster that grants nothing is a state and no failure
		all = slices.DeleteFunc(all, func(o outcome[loginResult]) bool { return problem.CodeOf(o.err) == problem.NoCapability })
	}
	return t.printResult(result{object: newList("LoginList", items), names: names, code: commonExitCode(all), table: func(bool) {
		t.writeTable(false, []string{"CLUSTER", "USER", "ROLE", "STATE", ""}, nil, rows)
	}})
}

// logoutAll signs out of every cluster that this machine signed in to and that selector selects.
func (t *tka) logoutAll(ctx context.Context, selector string, dryRun bool) error {
	targets, err := t.signedInTargets()
	if err == nil {
		targets, err = t.matching(ctx, targets, selector)
	}
	if err != nil {
		return err
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) ([]logoutResult, error) {
		return one.logoutSessions(ctx, at.cluster, dryRun)
	})
	type item struct {
		logoutResult
		Error string `json:"error"`
	}
	var items []item
	var names []string
	for _, o := range all {
		if o.err != nil {
			failed := item{logoutResult{meta: newMeta("Logout"), Cluster: o.cluster, Server: o.server, Removed: []string{}, Kubeconfig: []string{}, Left: []string{}}, errorMessage(o.err)}
			items = append(items, failed)
		}
		for _, res := range o.value {
			names, items = append(names, res.Removed...), append(items, item{logoutResult: res})
		}
	}
	return t.printResult(result{object: newList("LogoutList", items), names: names, code: commonExitCode(all), table: func(bool) {
		for _, it := range items {
			if it.Error != "" {
				t.printLine("Cannot sign out of %s: %s", it.Cluster, it.Error)
				continue
			}
			t.printLogout(it.logoutResult)
		}
	}})
}

// logoutSessions ends all sessions of a cluster, the default one first. It returns the results until the first error.
func (t *tka) logoutSessions(ctx context.Context, cluster string, dryRun bool) ([]logoutResult, error) {
	res, err := t.logoutOf(ctx, signinFlags{cluster: cluster}, dryRun)
	if err != nil {
		return nil, err
	}
	sessions := res.Left
	res.Left = []string{}
	all := []logoutResult{res}
	for _, session := range sessions {
		res, err := t.logoutOf(ctx, signinFlags{cluster, session}, dryRun)
		if err != nil {
			return all, err
		}
		res.Left = []string{}
		all = append(all, res)
	}
	return all, nil
}

// statusAll shows the sign-ins to all targets. If the device is signed in to some of them only, the others show as "none". If it is signed
// in to none, the exit code is 3.
func (t *tka) statusAll(ctx context.Context, targets []target) error {
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) ([]statusItem, error) {
		return one.statusOf(ctx, signinFlags{cluster: at.cluster}, false)
	})
	var items []statusItem
	none := 0
	for i, o := range all {
		if o.err == nil {
			items = append(items, o.value...)
			continue
		}
		it := statusItem{meta: newMeta("Signin"), Server: o.server}
		it.Cluster, it.State, it.Namespaces, it.MissingNamespaces = o.cluster, "none", []string{}, []string{}
		if notSignedIn(o.err) {
			none++
			all[i].err = nil
		} else {
			it.State, it.Error = "unknown", errorMessage(o.err)
		}
		items = append(items, it)
	}
	code := commonExitCode(all)
	if none == len(all) {
		code = output.ExitRefused
	}
	return t.showStatus(items, code)
}

// timeLeft returns the time until an RFC 3339 time, for people; "" if there is none.
func (t *tka) timeLeft(until string) string {
	at, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return ""
	}
	return output.HumanDuration(max(0, at.Sub(t.Now())))
}
