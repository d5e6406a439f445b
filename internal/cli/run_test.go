//go:build unix

package cli_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// PRX-15: Ctrl-C interrupts the command in all clusters with its whole process group, starts it in no other one, and leaves no file.
// A second one kills what ignores the first.
func TestPRX15_Interrupt(t *testing.T) {
	for name, tt := range map[string]struct {
		trap    string
		signals int
	}{
		"the commands end by the first": {"trap 'echo interrupted; exit 9' INT", 1},
		"the commands ignore the first": {"trap 'echo interrupted; > " + "$HOME/ignored-$TKA_CLUSTER' INT", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, eu := newAccessServer(t, "prod-eu")
			_, us := newAccessServer(t, "prod-us")
			_, asia := newAccessServer(t, "prod-asia")
			m := newMachine(t, eu.URL)
			m.write(t, "config/tka/config.yaml", m.read(t, "config/tka/config.yaml")+
				fmt.Sprintf("- {name: us, url: %q, insecureHTTP: true}\n- {name: asia, url: %q, insecureHTTP: true}\n", us.URL, asia.URL))
			for _, server := range []string{"main", "us", "asia"} {
				if r := m.run("login", "--server", server); r.code != 0 {
					t.Fatalf("login: %+v", r)
				}
			}
			script := tt.trap + "\nsleep 300 & echo $! > $HOME/sleep-$TKA_CLUSTER\necho $$ > $HOME/started-$TKA_CLUSTER\nwhile :; do sleep 0.05; done"
			r := m.start(t, "run", "--cluster", "prod-eu,prod-us,prod-asia", "--concurrency", "2", "--", "sh", "-c", script)
			for _, cluster := range []string{"prod-eu", "prod-us"} {
				waitUntil(t, "the command runs in "+cluster, m.exists("started-"+cluster))
			}
			r.Process.Signal(os.Interrupt)
			if tt.signals == 2 {
				for _, cluster := range []string{"prod-eu", "prod-us"} {
					waitUntil(t, "the command ignores the signal in "+cluster, m.exists("ignored-"+cluster))
				}
				r.Process.Signal(os.Interrupt)
			}
			r.waitExit(130)
			for _, cluster := range []string{"prod-eu", "prod-us"} {
				if want := cluster + "   | interrupted\n"; !strings.Contains(r.out.String(), want) {
					t.Errorf("stdout lacks %q:\n%s", want, r.out.String())
				}
				for _, file := range []string{"started-", "sleep-"} {
					pid, err := strconv.Atoi(strings.TrimSpace(m.read(t, file+cluster)))
					if err != nil {
						t.Fatal(err)
					}
					waitUntil(t, "the processes end", func() bool { return !isRunning(pid) })
				}
			}
			if m.exists("started-prod-asia")() || !strings.Contains(r.err.String(), "prod-asia: interrupted") {
				t.Errorf("the command ran in the third cluster, or tka does not say that it did not: %s", r.err.String())
			}
		})
	}
}

// isRunning reports whether a process exists that has not ended. An orphan stays a zombie where no process collects it.
func isRunning(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
