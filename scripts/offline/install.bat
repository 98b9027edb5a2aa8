@echo off
rem Windows: install.bat [FOLDER], or a double click. Finds a Python that the wheels are for.
setlocal
for %%v in (3.11 3.12 3.13 3.14) do (
    py -%%v "%~dp0install.py" --fits >nul 2>nul && (
        py -%%v "%~dp0install.py" %*
        goto end
    )
)
python "%~dp0install.py" %* || echo If there is no Python here: README.txt names the version to install.
:end
pause
