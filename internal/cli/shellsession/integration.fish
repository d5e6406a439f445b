function tka --description 'Sign in to Kubernetes clusters with your tailnet identity'
    set -l tka_dir (command mktemp -d)
    if test -z "$tka_dir"
        command @PROGRAM@ $argv
        return $status
    end
    begin
        set -lx @VARIABLE@ $tka_dir/@SHELL@
        command @PROGRAM@ $argv
    end
    set -l tka_code $status
    if test $tka_code -eq 0 -a -s $tka_dir/@SHELL@
        source $tka_dir/@SHELL@
    end
    command rm -rf -- $tka_dir
    return $tka_code
end
