package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// step is a command that a person would type, and its expected result.
type step struct {
	says  string       // the claim
	run   string       // the command; its words have no spaces
	admin bool         // run by the cluster's administrator
	check func() error // instead of run
	exit  int
	wants []string // texts in its output
	lacks []string // texts not in its output
}

func (s *show) steps(ctx context.Context, who string, steps ...step) error {
	for _, st := range steps {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted")
		}
		if st.check != nil {
			err := st.check()
			s.claim(err == nil, "%s%s", st.says, because(err))
			continue
		}
		words := strings.Fields(st.run)
		by := who
		var r testenv.Result
		var err error
		if st.admin {
			by = "admin"
			r.Stdout, r.Stderr, r.Exit = kubetest.Kubectl(ctx, s.env.Cluster.Kubeconfig, words[1:]...)
			r.Both = r.Stdout + r.Stderr
		} else if r, err = s.people[who].Run(ctx, words[0], words[1:]...); err != nil {
			return err
		}
		s.command(by, "%s", st.run)
		s.output(r.Both)
		ok := r.Exit == st.exit
		for _, w := range st.wants {
			ok = ok && strings.Contains(r.Stdout+r.Stderr, w)
		}
		for _, l := range st.lacks {
			ok = ok && !strings.Contains(r.Stdout+r.Stderr, l)
		}
		s.claim(ok, "%s", st.says)
	}
	return nil
}

// until runs a command until its exit code is want, for as long as a change of the policy may take to arrive.
func (s *show) until(ctx context.Context, who, run string, want int) (err error) {
	words := strings.Fields(run)
	for end := time.Now().Add(10 * time.Second); ; {
		if s.lastOut, err = s.people[who].Run(ctx, words[0], words[1:]...); err != nil || s.lastOut.Exit == want || time.Now().After(end) {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// count returns the number of sign-ins in the cluster.
func (s *show) count(ctx context.Context) (int, error) {
	out, errs, exit := kubetest.Kubectl(ctx, s.env.Cluster.Kubeconfig, "get", "tkasignins", "-A", "-o", "name")
	if exit != 0 {
		return 0, fmt.Errorf("kubectl get tkasignins: %s", errs)
	}
	return len(strings.Fields(out)), nil
}

func (s *show) noTokenOnDisk() error {
	b, err := os.ReadFile(s.people["alice"].Kubeconfig())
	if err != nil {
		return err
	}
	if strings.Contains(string(b), "token:") || !strings.Contains(string(b), "exec:") {
		return fmt.Errorf("it has a token, or no plugin")
	}
	return nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Output for the reader.

func (s *show) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *show) title(n int, text string) {
	fmt.Printf("\n%s\n", s.paint("1", fmt.Sprintf("%d. %s", n, text)))
}

func (s *show) note(format string, args ...any) {
	fmt.Printf("   %s\n", s.paint("2", fmt.Sprintf(format, args...)))
}

func (s *show) command(who, format string, args ...any) {
	fmt.Printf("   %s$ %s\n", who, s.paint("1", fmt.Sprintf(format, args...)))
}

func (s *show) output(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Printf("     %s\n", strings.TrimRight(line, "\n"))
	}
}

func (s *show) claim(ok bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if ok {
		fmt.Printf("   %s %s\n", s.paint("32", "✓"), text)
		return
	}
	s.untrue = append(s.untrue, text)
	fmt.Printf("   %s %s\n", s.paint("31", "✗ NOT TRUE:"), text)
}
