function global:tka {
    $tkaProgram = (Get-Command @PROGRAM@ -CommandType Application -TotalCount 1).Source
    if ([IO.Directory].GetMethod('CreateTempSubdirectory')) { # of its owner only
        $tkaDir = [IO.Directory]::CreateTempSubdirectory('tka.').FullName
    } else { # Windows: the folder for temporary files is each person's own
        $tkaDir = (New-Item -ItemType Directory -Path (Join-Path ([IO.Path]::GetTempPath()) ('tka.' + [Guid]::NewGuid()))).FullName
    }
    $tkaFile = Join-Path $tkaDir '@SHELL@'
    $tkaBefore = $env:@VARIABLE@
    $tkaCode = 1
    try {
        $env:@VARIABLE@ = $tkaFile
        if ($MyInvocation.ExpectingInput) { $input | & $tkaProgram @args } else { & $tkaProgram @args }
        $tkaCode = $LASTEXITCODE
        $env:@VARIABLE@ = $tkaBefore
        if ($tkaCode -eq 0 -and (Test-Path -LiteralPath $tkaFile)) {
            Invoke-Expression ([IO.File]::ReadAllText($tkaFile))
        }
    } finally {
        $env:@VARIABLE@ = $tkaBefore
        Remove-Item -Recurse -Force -LiteralPath $tkaDir
    }
    $global:LASTEXITCODE = $tkaCode
}
