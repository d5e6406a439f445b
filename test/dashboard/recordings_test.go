//go:build unix

package dashboard_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/plane"
)

// shellSession is what a person saw: colours, a wide character, a resize, a line that is drawn twice, and a pause of ten minutes.
const shellSession = `{"version":2,"width":80,"height":12,"command":"bash"}
[0.2,"o","\u001b[1;32mroot@web-0\u001b[0m:\u001b[34m/app\u001b[0m# ls -l\r\n"]
[0.6,"o","total 12\r\n-rw-r--r-- 1 app app  512 Nov 22 11:40 \u001b[36mconfig.yaml\u001b[0m\r\n-rwxr-xr-x 1 app app 8192 Nov 22 11:40 \u001b[1;32mserver\u001b[0m\r\n"]
[1.4,"r","100x14"]
[1.5,"o","\u001b[1;32mroot@web-0\u001b[0m:\u001b[34m/app\u001b[0m# ./migrate --all\r\nmigrating  10 %\rmigrating 100 %\r\n"]
[601.5,"o","\u001b[7m 完了 done \u001b[0m \u001b[38;5;208mwarning: 2 tables are empty\u001b[0m\r\n\u001b[4mnext\u001b[0m: restart\r\n"]
[602.0,"o","\u001b[1;32mroot@web-0\u001b[0m:\u001b[34m/app\u001b[0m# exit\r\n"]
[602.1,"m","end: exit code 0"]
`

// hostileSession is what a program prints to harm the reader of its recording.
const hostileSession = `{"version":2,"width":4000000,"height":4000000}
[0.1,"o","<img src=x onerror=window.hurt=1><script>window.hurt=1</script>\u001b]8;;javascript:window.hurt=1\u0007click\u001b]8;;\u0007\r\n"]
[0.2,"o","\u001b]0;owned\u0007\u001b]52;c;eA==\u0007\u0007\u001b[21t\u001b[99999999b\u202eevil\u001b[?1000h after\r\n"]
[0.3,"r","999999x999999"]
[0.4,"m","<img src=x onerror=window.hurt=1> \u001b[31m"]
`

const sessionFiles = `{"version":2,"width":0,"height":0}
[2.0,"m","stdout: 104857600 bytes, SHA-256 5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"]
[2.1,"m","end: exit code 0"]
`

// recorder returns a recorder with recordings of three people.
func (h *env) recorder() *plane.Recorder {
	now := time.Now().UTC()
	hash := strings.Repeat("0123456789abcdef", 4)
	of := func(n int, login, device, kind, pod, command string, tty bool, state recording.State, length time.Duration) recording.Summary {
		at := now.Add(-time.Duration(n) * time.Hour).Truncate(time.Second)
		s := recording.Summary{ID: fmt.Sprintf("%s-%016x", at.Format("20060102T150405Z"), n), State: state, Bytes: int64(n) * 40_000, Started: at, Modified: at.Add(length), Login: login, Device: device, Cluster: "prod-eu",
			SignIn: "s-000" + fmt.Sprint(n), Role: "edit", AuditID: fmt.Sprintf("9392fdf7-363b-4154-8550-6808e60c9%03d", n), Kind: kind, TTY: tty, Namespace: "shop", Pod: pod, Container: "app", Command: command}
		if state == recording.Complete {
			s.SHA256 = hash
		}
		return s
	}
	all := []recording.Summary{
		of(1, "frank@acme.dev", "frank-nuc", "exec", "web-0", "bash", true, recording.Complete, 602*time.Second),
		of(2, "alice@acme.dev", "alice-laptop", "attach", "web-1", "", true, recording.Live, 40*time.Second),
		of(3, "erin@acme.dev", "erin-<b>desk</b>", "exec", "database-with-a-long-name-0", `sh -c "<img src=x onerror=window.hurt=1>"`, true, recording.Incomplete, 3*time.Second),
		of(4, "erin@acme.dev", "erin-desk", "exec", "web-0", "tar cf - /data", false, recording.Complete, 2*time.Second),
	}
	text := map[string]string{all[0].ID: shellSession, all[1].ID: shellSession, all[2].ID: hostileSession, all[3].ID: sessionFiles}
	return &plane.Recorder{Name: "recorder.tail1234.ts.net",
		List: func(_ context.Context, req recording.ListRequest) (recording.Page, error) {
			page := recording.Page{Recordings: []recording.Summary{}}
			for _, s := range all {
				if req.Before != "" && s.ID >= string(req.Before) {
					continue
				}
				if (req.Login == "" || string(req.Login) == s.Login) && (req.ID == "" || string(req.ID) == s.ID) {
					page.Recordings = append(page.Recordings, s)
				}
			}
			if len(page.Recordings) == 4 { // the last one is on another page
				page.Recordings, page.Next = page.Recordings[:3], all[2].ID
			}
			return page, nil
		},
		Open: func(_ context.Context, req recording.GetRequest) (io.ReadCloser, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.replays = append(h.replays, string(req.ID[17:])+" for "+string(req.For))
			return io.NopCloser(strings.NewReader(text[string(req.ID)])), nil
		}}
}
